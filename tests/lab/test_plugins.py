"""Plugins: imported before names are looked up, by workers too, and part of a run's folder."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ocar import registry
from ocar.methods.registry import METHODS
from ocar_lab.cli import main
from ocar_lab.experiment import RunConfig
from ocar_lab.plugins import VARIABLE, named_plugins
from ocar_lab.runs import find_runs

Captured = pytest.CaptureFixture[str]

PLUGIN = """
from dataclasses import dataclass, replace

from ocar.methods.er import ERSettings
from ocar.methods.registry import METHODS
from ocar.streams.benchmarks import BENCHMARKS


@dataclass(frozen=True, kw_only=True)
class MineSettings(ERSettings):
    \"\"\"Settings of a method of one's own.\"\"\"

    patience: int = 3
    \"\"\"How patient it is.\"\"\"


METHODS["mine"] = replace(METHODS["er"], settings=MineSettings, about="One's own.")
BENCHMARKS["my-digits"] = replace(BENCHMARKS["split-digits"], name="my-digits")
"""

QUICK = ["--lr", "0.1", "--max-batches", "2", "--no-probe", "--device", "cpu", "--threads", "1"]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory; what it registers is forgotten afterwards."""
    from ocar.streams.benchmarks import BENCHMARKS

    for table in (METHODS, BENCHMARKS):
        for name in ("mine", "my-digits"):
            monkeypatch.setitem(table, name, None)  # type: ignore[arg-type]
            del table[name]  # and again when the test is over
    name = "a_plugin_for_tests"
    (tmp_path / f"{name}.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    del sys.modules[name]
    monkeypatch.setattr("ocar_lab.plugins._named", ())
    return name


@pytest.mark.long
def test_a_method_and_a_benchmark_of_ones_own_run_and_resume(plugin: str, capsys: Captured) -> None:
    call = ["run", "my-digits", "mine", "er", *QUICK, "--seeds", "0", "1", "--workers", "2"]
    assert main(call) == 2
    assert "Unknown benchmark 'my-digits'" in capsys.readouterr().err
    assert main([*call, "--plugin", plugin, "--patience", "7"]) == 0  # in processes
    runs = {(run.label, run.seed): run for run in find_runs(Path("runs"))}
    assert len(runs) == 4
    run = runs["mine", 0]
    assert run.state == "finished"
    assert run.config["settings"]["patience"] == 7
    document = json.loads((run.path / "config.json").read_text())
    assert document["given"]["plugins"] == [plugin]
    capsys.readouterr()
    assert main([*call, "--patience=7", f"--plugin={plugin}"]) == 0
    assert "mine seed 0: already finished" in capsys.readouterr().err
    assert main(["methods", "--json", "--plugin", plugin]) == 0
    assert "mine" in {method["name"] for method in json.loads(capsys.readouterr().out)}


def test_plugins_of_the_environment(
    plugin: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv(VARIABLE, f"json, {plugin},")
    assert main(["run", "my-digits", "mine", "--help"]) == 0
    assert "How patient it is. (default: 3)" in capsys.readouterr().out
    assert named_plugins() == ("json", plugin)
    monkeypatch.delenv(VARIABLE)
    assert main(["methods"]) == 0
    assert named_plugins() == ()


def test_installed_plugins_need_no_flag(
    plugin: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def entry_points(*, group: str) -> Any:
        entry = importlib.metadata.EntryPoint(name="mine", value=plugin, group=registry.PLUGINS)
        return [entry] if group == registry.PLUGINS else []

    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    registry.load_plugins.cache_clear()
    try:
        assert main(["run", "my-digits", "mine", "--help"]) == 0
        assert "How patient it is. (default: 3)" in capsys.readouterr().out
        assert named_plugins() == ()
    finally:
        registry.load_plugins.cache_clear()


def test_a_command_that_is_suggested_names_the_plugins(plugin: str, capsys: Captured) -> None:
    call = ["run", "my-digits", "mine", "--plugin", plugin]
    assert main(call) == 2
    assert f"search: ocar tune my-digits mine --plugin {plugin}\n" in capsys.readouterr().err
    assert main([*call, "--pattience", "1"]) == 2
    assert f"See: ocar run my-digits mine --help --plugin {plugin}\n" in capsys.readouterr().err


def test_a_configuration_imports_its_plugins(plugin: str) -> None:
    values = {"benchmark": "my-digits", "method": "mine", "settings": {"lr": 0.1}}
    assert RunConfig(**values, plugins=[plugin]).plugins == (plugin,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plugin", "no_such_module"], "Invalid plugin 'no_such_module': ModuleNotFoundError"),
        (["--plugin", "broken"], "Invalid plugin 'broken': ZeroDivisionError: division by zero"),
        (["--plugin"], "Invalid --plugin without a value"),
        (["--plugin="], "Invalid --plugin without a value"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_a_wrong_call(
    words: list[str], message: str, plugin: str, capsys: Captured
) -> None:
    Path("broken.py").write_text("1 / 0")
    assert main(["methods", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err
