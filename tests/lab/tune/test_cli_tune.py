"""``ocar tune``, ``ocar run --preset``: resumed, stopped, told how to go on, errors in a line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ocar.install import install_line
from ocar_lab.cli import main
from ocar_lab.cli.tune_progress import TuneDisplay, settings_text
from ocar_lab.runs import find_runs
from ocar_lab.runs.texts import time_text
from ocar_lab.tune import Ended, Moved, Study, Trial, TuneConfig
from ocar_lab.tune.study import JOURNAL

OCAR = [sys.executable, "-m", "ocar_lab"]
QUICK = ["--tasks", "1", "--max-batches", "4", "--device", "cpu", "--threads", "1"]


def tune(out: Path, *more: str, method: str = "er") -> int:
    return main(["tune", "split-digits", method, "--out", str(out), *QUICK, *more])


def test_a_search_ends_with_a_table_and_a_preset_that_a_run_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path / "s", "--trials", "3", "--memory", "30") == 0
    captured = capsys.readouterr()
    assert captured.err == "split-digits er: begins, 3 trials, validation accuracy after 1 tasks\n"
    preset = tmp_path / "s" / "split-digits" / "er" / "preset.json"
    lines = captured.out.splitlines()
    assert lines[0].endswith("; 3 trials, 3 finished")
    assert lines[1].split() == ["trial", "value", "lr", "seconds"]
    assert lines[-2] == f"Best settings:  {preset}"
    command = lines[-1].partition(":")[2].split()
    assert command[:4] == ["ocar", "run", "split-digits", "er"]
    assert command[-2:] == ["--preset", str(preset)]
    assert tune(tmp_path / "s", "--trials", "4", "--memory", "30", "--json") == 0
    captured = capsys.readouterr()
    assert "resumes at trial 3" in captured.err
    document = json.loads(captured.out)
    assert len(document["trials"]) == 4
    values = [trial["value"] for trial in document["trials"]]
    assert document["best"]["value"] == max(values)
    assert json.loads(preset.read_text())["found"]["trials"] == 4  # also if an earlier one is best
    limits = ["--max-batches", "3", "--device", "cpu", "--no-probe", "--threads", "1"]
    run = ["run", "split-digits", "er", "--preset", str(preset), "--out", str(tmp_path / "r")]
    assert main([*run, *limits]) == 0
    assert main([*run, *limits, "--memory", "40"]) == 0
    used = [run.config["settings"] for run in find_runs(tmp_path / "r")]
    best = document["best"]["settings"]["lr"]
    assert sorted((s["lr"], s["memory"]) for s in used) == [(best, 30), (best, 40)]


def test_a_study_of_another_configuration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path, "--trials", "1") == 0
    capsys.readouterr()
    assert tune(tmp_path, "--trials", "1", "--seed", "3") == 1
    assert "another study: seed is 0 there and 3 here.\n" in capsys.readouterr().err


@pytest.mark.long
def test_a_search_that_is_asked_to_stop_says_how_to_go_on(tmp_path: Path) -> None:
    call = ["tune", "split-digits", "er", "--out", str(tmp_path), "--device", "cpu"]
    call += ["--threads", "1", "--trials", "400", "--tasks", "1"]
    with subprocess.Popen(
        [*OCAR, *call], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        preset = tmp_path / "split-digits" / "er" / "preset.json"
        while not preset.exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "of 400 trials. The same command resumes:\n  ocar tune split-digits er --out" in err
    assert "Traceback" not in err
    assert "Best settings:" in out
    assert "\x1b" not in out + err
    with Study(TuneConfig(benchmark="split-digits", method="er", tasks=1), preset.parent) as study:
        assert {trial.state for trial in study.trials()} == {"finished"}


WRONG: list[tuple[str | None, str]] = [
    (None, "does not exist. ocar tune writes one."),
    ("no JSON", "cannot be read"),
    ("[1]", "is not a file that ocar tune wrote"),
    ('{"format": "other"}', "is not a file that ocar tune wrote"),
    ('{"format": "ocar-preset", "version": 9}', "has version 9"),
    ('{"format": "ocar-preset", "version": 1}', "missing 3 required"),
]


@pytest.mark.parametrize(("text", "reason"), WRONG)
def test_a_wrong_preset_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, reason: str
) -> None:
    path = tmp_path / "preset.json"
    if text is not None:
        path.write_text(text)
    assert main(["run", "split-digits", "er", "--preset", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ocar: Invalid preset: {path}")
    assert reason in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"settings": {"nonsense": 1}}, "has no setting nonsense"),
        ({"settings": {"lr": -1.0}}, "Invalid lr=-1.0"),
        ({"method": "ocar", "settings": {"lr": 0.1, "tau_step": 1e-8, "ema": 0.1}}, "is for ocar"),
    ],
)
def test_a_preset_that_does_not_fit_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "preset.json"
    common = {"format": "ocar-preset", "version": 1, "benchmark": "split-digits", "method": "er"}
    path.write_text(json.dumps({**common, **values}))
    assert main(["run", "split-digits", "er", "--preset", str(path)]) == 2
    err = capsys.readouterr().err
    assert str(path) in err
    assert reason in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["split-digits"], "A benchmark and one method are needed"),
        (["split-digits", "er", "ocar"], "A benchmark and one method are needed"),
        (["nowhere", "er"], "Unknown benchmark 'nowhere'"),
        (["split-digits", "er", "--trials", "0"], "Invalid --trials 0"),
        (["split-digits", "er", "--workers", "0"], "Invalid --workers 0"),
        (["split-digits", "er", "--lr", "0.1"], "Nothing to search"),
        (["split-digits", "er", "--gpus-per-trial", "0.5"], "without --ray"),
        (["split-digits", "er", "--ray", "auto", "--device", "cuda"], "--gpus-per-trial, such as"),
    ],
)
def test_wrong_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert main(["tune", *arguments, "--out", str(tmp_path)]) == 2
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.rglob(JOURNAL))


BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("optuna", "ray"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Refuse())
from ocar_lab.cli import main
from ocar.errors import MissingPackageError
from ocar_lab.experiment.executors.cluster import Cluster
try:
    Cluster(address="auto")
except MissingPackageError as error:
    print(error)
sys.exit(main(["tune", "split-digits", "er", "--out", sys.argv[1]]))
"""


def test_missing_packages_are_named(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout == f"A Ray cluster needs ray: {install_line('ray')}\n"
    assert ended.stderr == f"ocar: Tuning needs Optuna: {install_line('tune')}\n"


# --- how it is watched ---


def test_texts() -> None:
    assert settings_text({"lr": 0.012345, "subsample": 50}) == "lr 0.0123  subsample 50"
    assert [time_text(s) for s in (5.2, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_display_tells_trials_the_best_and_the_time_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    now = 0.0
    trial = Trial(number=0, state="finished", settings={"lr": 0.5}, value=0.75)
    config = TuneConfig(benchmark="split-digits", method="er", device="cpu")
    with Study(config, tmp_path) as study:
        display = TuneDisplay(study, trials=5, terminal=terminal, clock=lambda: now)
    with display:
        display.show(Moved(number=0))
        display.show(Moved(number=0, done=7, batches=20))
        assert display.running_text() == "trial 0 at 7/20"
        assert (display.left_text(), display.best_text()) == ("", "none finished")
        now = 61.0
        display.show(Ended(trial=trial, best=trial))
        display.note("something else")
    assert display.running_text() == ""
    assert display.left_text() == "4:04 left"
    assert display.best_text() == "best 75.0% (trial 0: lr 0.5)"
    err = capsys.readouterr().err
    assert "something else\n" in err
    if not terminal:
        assert "split-digits er: 1/5, 4:04 left, best 75.0% (trial 0: lr 0.5)\n" in err
