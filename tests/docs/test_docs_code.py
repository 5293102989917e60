"""Every block of Python in the documentation runs, and every command in it can be called."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from benchmarks.__main__ import Options as BenchmarkOptions
from docs_pages import ROOT, Block, blocks, chains, written_pages
from learners.toys import names_kept

import ocar_lab.cli
from ocar.methods.registry import METHODS
from ocar_lab.cli import COMMANDS, main
from ocar_lab.cli.arguments import parse

PAGES = {
    str(path.relative_to(ROOT)): blocks(
        path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
    )
    for path in written_pages()
}
# All of them now: one that were imported later would take over what a test has put in its place.
CLI = [
    importlib.import_module(f"ocar_lab.cli.{module.name}")
    for module in pkgutil.iter_modules(ocar_lab.cli.__path__)
]
CHAINS = [chain for page in PAGES.values() for chain in chains(page)]
SHELL = [block for page in PAGES.values() for block in page if block.language in ("sh", "")]


def run_chain(chain: Sequence[Block], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    space: dict[str, Any] = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]), names_kept():
        torch.manual_seed(0)
        for block in chain:
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, block.page, "exec"), space)


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[0].where)
def test_python_runs(chain: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = [word.removeprefix("needs-") for block in chain for word in block.words]
    for package in needs:
        if package != "continues" and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    run_chain(chain, tmp_path, monkeypatch)


@pytest.mark.parametrize("method", METHODS)
def test_python_on_the_page_of_a_method_runs(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from method_pages import method_page

    found = chains(blocks(method_page(method, []), method))
    assert found
    for chain in found:
        run_chain(chain, tmp_path, monkeypatch)


def test_there_are_blocks() -> None:
    assert len(CHAINS) >= 10
    languages = {block.language for page in PAGES.values() for block in page}
    known = {"python", "sh", "text", "", "{include}", "{literalinclude}", "{toctree}", "{eval-rst}"}
    known |= {"{image}", "console"}
    assert languages <= known, "a language that no test looks at"


class Parsed(BaseException):
    """The arguments of a command were understood."""


def commands(block: Block) -> list[str]:
    """The commands of a block, without what stands beside them."""
    lines = [re.split(r"\s{2,}|\s#", line)[0] for line in block.text.splitlines()]
    parts = [part.strip() for line in lines for part in line.split(" | ")]
    return [re.sub(r"^(?:\w+=\S+ )+", "", part) for part in parts if part]


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.where)
def test_commands_can_be_called(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    for home in CLI:
        if hasattr(home, "parse_groups"):
            monkeypatch.setattr(home, "parse_groups", stop_after(home.parse_groups))
    for line in commands(block):
        program, *arguments = shlex.split(line)
        if program == "ocar":
            assert arguments[0] in COMMANDS, line
            if len(arguments) > 1 or arguments[0] not in ("paper", "run", "show", "tune", "keep"):
                with pytest.raises(Parsed):
                    assert main(arguments) == 0, line
        elif program == "make":
            assert targets(arguments) <= makefile(), line
        elif program == "python" and arguments[:2] == ["-m", "benchmarks"]:
            with pytest.raises(Parsed):
                parse(BenchmarkOptions, arguments[2:], command="python -m benchmarks")
        elif program == "python" and arguments[0].endswith(".py"):
            assert (ROOT / arguments[0]).is_file(), line


def stop_after(parse: Any) -> Any:
    def parsed(*arguments: Any, **options: Any) -> NoReturn:
        parse(*arguments, **options)
        raise Parsed

    return parsed


def targets(arguments: Sequence[str]) -> set[str]:
    return {argument for argument in arguments if "=" not in argument}


def makefile() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"(?m)^([a-z-]+):", text))
