"""Every file under ``results/`` says what made it: command, device, and revision or version."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ocar_lab.cli import COMMANDS
from ocar_lab.runs import read_result, result_files

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
FILES = {
    path.relative_to(RESULTS).as_posix(): path
    for path in sorted(RESULTS.rglob("*"))
    if path.suffix in (".json", ".jsonl")
}

WITHOUT_REVISION = {
    *(f"figures/{name}.json" for name in ("curves-split-digits", "slow/curves-split-cifar100")),
    *(f"split-{name}.json" for name in ("digits/comparison", "digits/search")),
    *(f"split-mnist/{name}.json" for name in ("comparison", "search", "studies")),
    "curvatures/split-cifar100.jsonl",
    "split-cifar100/onpro-seldom-evaluated.json",
}
"""Written by scripts that did not note the revision yet; a new file has one."""

REVISION = re.compile(
    r"\b[0-9a-f]{40}\b|(?<=revision )[0-9a-f]{7,39}\b|(?<=[\"(])[0-9a-f]{7,8}(?=[\")])"
)
SCRIPT = re.compile(r"(?<![\w.])[\w/]+\.py\b")
PLACES = ("experiments", "experiments/gallery", "")


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a value, at any depth."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, (dict, list)):
        inner = value.values() if isinstance(value, dict) else value
        yield from itertools.chain.from_iterable(map(objects, inner))


def read(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    return [*itertools.chain.from_iterable(objects(json.loads(line)) for line in lines)]


def revisions(found: list[dict[str, Any]]) -> set[str]:
    """All revisions that are named, in a field or in a text."""
    return set(REVISION.findall(json.dumps(found)))


@pytest.mark.parametrize("name", FILES)
def test_a_file_names_its_revision_or_an_early_version(name: str) -> None:
    found = read(FILES[name])
    early = any(str(o.get("ocar", "")).startswith("0.1") for o in found)
    assert bool(revisions(found) or early) is (name not in WITHOUT_REVISION)


def test_every_revision_is_in_the_history() -> None:
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run(
        [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("the history is not here")
    named = {own: name for name, path in FILES.items() for own in revisions(read(path))}
    assert named
    asked = subprocess.run(
        [*git, "cat-file", "--batch-check"],
        input="\n".join(named),
        capture_output=True,
        text=True,
        check=True,
    )
    kinds = [line.split()[:2] for line in asked.stdout.splitlines()]
    assert [(own, named[own]) for own, kind in kinds if kind != "commit"] == []


@pytest.mark.parametrize("name", FILES)
def test_a_command_is_one_of_the_repository(name: str) -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for own in read(FILES[name])[:1]:  # a session may have called something else
        given = own.get("command")
        if given is None or "bench/h200-concurrent" in name:  # ocar bench, of version 0.1
            continue
        line = " ".join(given) if isinstance(given, list) else str(given)
        scripts = [Path(word).name for word in SCRIPT.findall(line)]
        if scripts:
            assert all(any((ROOT / f / s).is_file() for f in PLACES) for s in scripts), line
        elif line.startswith("ocar "):
            assert line.split()[1] in COMMANDS, line
        elif line.startswith("make "):
            assert f"\n{line.split()[1]}:" in targets, line
        else:
            assert "-m benchmarks" in line, line


@pytest.mark.parametrize("path", result_files(RESULTS), ids=lambda path: path.stem)
def test_a_result_names_command_device_and_versions(path: Path) -> None:
    result = read_result(path)
    assert result.command is not None
    for run in result.runs:
        assert run.device
        for session in run.sessions:
            assert session["git"] or session["versions"]["ocar"] == "0.1.0"
