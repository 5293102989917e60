"""The command line: help, exit codes, short errors, JSON that parses, plain output in a pipe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from datasets.dataset_files import tiny_files, write_folder

from ocar.methods.registry import METHODS
from ocar.streams.benchmarks import BENCHMARKS
from ocar.version import __version__
from ocar_lab.cli import COMMANDS, main
from ocar_lab.cli.flags import method_settings
from ocar_lab.runs import find_runs
from ocar_lab.runs.find import HOW_TO_RUN
from ocar_lab.runs.folder import METRICS

Captured = pytest.CaptureFixture[str]

QUICK = ["--device", "cpu", "--threads", "1", "--max-batches", "4", "--no-probe"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two methods with three seeds each."""
    out = tmp_path_factory.mktemp("runs")
    seeds = ["--seeds", "0", "1", "2", "--workers", "1"]
    code = main(["run", "split-digits", "er", "ocar", "--out", str(out), *seeds, *QUICK])
    assert code == 0
    return out


def test_the_top_level_help_names_every_command(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"ocar {name}" in text for name in COMMANDS)
    assert main([]) == 2


def test_help_version_and_import_do_not_wait_for_torch() -> None:
    code = (
        "import sys; import ocar; from ocar_lab.cli import main; main(['--help']); "
        "main(['--version']); sys.exit('torch' in sys.modules or 'tyro' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"ocar {__version__}" in ended.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: Captured) -> None:
    assert main([command, "--help"]) == 0
    captured = capsys.readouterr()
    assert f"usage: ocar {command}" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_is_a_flag_with_help(method: str, capsys: Captured) -> None:
    assert main(["run", "split-digits", method, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert re.search(r"--lr (\{None\}\|)?FLOAT Learning rate α\.", text)
    settings = method_settings(method)
    kinds = [METHODS[method].settings, METHODS[method].transform]
    names = {field.name for kind in kinds if kind is not None for field in fields(kind)}
    functions = {"normalize", "augment"}
    patterns = {"exclude", "include"} if "curvature" in names else set()  # MIR has an exclude too
    assert names - set(settings) == {"seed"} | functions | patterns
    for name, setting in settings.items():
        assert len(setting.about.split()) > 1, f"{name} has no docstring"
        flag = f"--{name.replace('_', '-')}"
        assert re.search(rf"{flag}[ ,].{{,120}}{re.escape(setting.about)} \(default: ", text), name


def test_flags_of_several_methods_show_the_preset_of_each(capsys: Captured) -> None:
    assert main(["run", "split-cifar100", "er", "ocar", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(er: 0.0598729, ocar: 0.000703388)" in text


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_the_bundled_digits(method: str, tmp_path: Path) -> None:
    call = ["run", "split-digits", method, "--seeds", "0", "--out", str(tmp_path), *QUICK]
    assert main([*call, "--workers", "1", "--max-batches", "2"]) == 0
    (run,) = find_runs(tmp_path)
    assert run.state == "finished"


def test_a_run_that_fails_is_exit_code_1(tmp_path: Path, capsys: Captured) -> None:
    call = ["run", "split-mnist", "er", "--data-root", str(tmp_path), "--out", str(tmp_path)]
    assert main(call) == 1
    err = capsys.readouterr().err
    assert "er seed 0 failed: " in err
    (failed,) = find_runs(tmp_path)
    assert failed.state == "failed"
    assert "Traceback" not in err
    assert main([*call, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("closed", [("stdout",), ("stderr",), ("stdout", "stderr")])
def test_closed_outputs_stop_nothing(
    closed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in closed:  # Python has None there after >&-
        monkeypatch.setattr(sys, name, None)
    arguments = [*QUICK, "--every", "task", "--workers", "1", "--out", str(tmp_path / "runs")]
    assert main(["run", "split-digits", "er", *arguments]) == 0
    assert main(["show", str(tmp_path / "runs")]) == 0
    assert main(["rnu"]) == 2
    for name in closed:
        getattr(sys, name).close()


def test_a_folder_without_runs_is_exit_code_1(tmp_path: Path, capsys: Captured) -> None:
    assert main(["show", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"ocar: There are no runs in {tmp_path}. {HOW_TO_RUN}\n"
    assert main(["show", str(tmp_path / "x"), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_show_gives_what_the_lines_give(out: Path, capsys: Captured) -> None:
    assert main(["show", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["runs"]) == 6
    for group in said["groups"]:
        aaa, acc = [], []
        for run in find_runs(out):
            if run.label == group["label"]:
                lines = [json.loads(x) for x in (run.path / METRICS).read_text().splitlines()]
                pooled = [sum(x["correct"]) / sum(x["sizes"]) for x in lines[:-1]]
                aaa.append(sum(pooled) / len(pooled))
                acc.append(sum(lines[-1]["correct"]) / sum(lines[-1]["sizes"]))
        for name, values in (("aaa", aaa), ("acc", acc)):
            assert group["metrics"][name]["mean"] == pytest.approx(np.mean(values), rel=1e-12)
            assert group["metrics"][name]["std"] == pytest.approx(np.std(values, ddof=1), rel=1e-9)
            assert group["metrics"][name]["count"] == 3


def test_show_prints_the_rounded_numbers(out: Path, capsys: Captured) -> None:
    assert main(["show", str(out), "--json"]) == 0
    er = next(g for g in json.loads(capsys.readouterr().out)["groups"] if g["label"] == "er")
    assert main(["show", str(out)]) == 0
    text = capsys.readouterr().out
    acc = er["metrics"]["acc"]
    assert f"{100 * acc['mean']:.1f} ± {100 * acc['std']:.1f}" in text
    assert "er (max_batches=4)" in text
    assert "Plasticity" in text
    assert "\x1b" not in text


def test_show_goes_on_past_a_damaged_run(out: Path, tmp_path: Path, capsys: Captured) -> None:
    run = next(iter(find_runs(out)))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_bytes((run.path / "config.json").read_bytes())
    (tmp_path / "bad" / METRICS).write_text("x\ny\n")
    (tmp_path / "good").symlink_to(run.path)
    assert main(["show", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert f"ocar: {tmp_path / 'bad' / METRICS} is damaged: line 1" in captured.err


def test_the_paper_stands_below_its_method(out: Path, tmp_path: Path, capsys: Captured) -> None:
    run = next(run for run in find_runs(out) if run.label == "ocar")
    config = json.loads((run.path / "config.json").read_text())
    config["config"]["benchmark"] = "split-cifar100"
    config["changed"] = {}  # as if it had seen the whole stream
    (tmp_path / "config.json").write_text(json.dumps(config))
    metrics = (run.path / METRICS).read_bytes()
    (tmp_path / METRICS).write_bytes(metrics.replace(b"split-digits", b"split-cifar100"))
    assert main(["show", str(tmp_path)]) == 0
    paper = next(x for x in capsys.readouterr().out.splitlines() if x.strip().startswith("paper"))
    assert "34.9 ± 0.6" in paper
    assert "48.2 ± 1.2" in paper


@pytest.mark.parametrize("command", ["methods", "benchmarks"])
def test_lists_name_everything(command: str, capsys: Captured) -> None:
    names = list(METHODS if command == "methods" else BENCHMARKS)
    assert main([command]) == 0
    assert all(name in capsys.readouterr().out for name in names[:1])
    assert main([command, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == names


@pytest.mark.parametrize("action", [[], ["status"], ["verify"]])
def test_data_says_what_is_there(action: list[str], tmp_path: Path, capsys: Captured) -> None:
    assert main(["data", *action, "--data-root", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["root"] == str(tmp_path)
    sets = {entry["name"]: entry for entry in said["sets"]}
    assert sets["digits"]["whole"]
    assert not sets["cifar100"]["present"]
    assert main(["data", *action, "--data-root", str(tmp_path)]) == 0
    assert "cifar-100-python.tar.gz" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["tiny-imagenet", "cifar100"])
def test_data_says_once_how_to_get_all_of_a_part(
    name: str, tmp_path: Path, capsys: Captured
) -> None:
    write_folder(tmp_path / "tiny-imagenet-200", tiny_files())
    write_folder(tmp_path / "cifar-100-python", {"train": b""})
    assert main(["data", "--data-root", str(tmp_path)]) == 1
    (said,) = [t for t in capsys.readouterr().out.split("\n\n") if t.startswith(f"{name}\n")]
    assert said.count("http") == 1
