"""``ocar run`` and ``ocar demo``: plain in a pipe, saved on Ctrl-C, told how to go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stored_runs import assert_same_run, small

import ocar_lab
from ocar_lab.cli import main
from ocar_lab.cli.arguments import unbox
from ocar_lab.cli.progress import live_text
from ocar_lab.cli.stopping import StopRequest
from ocar_lab.experiment import Progress
from ocar_lab.runs import find_runs
from ocar_lab.runs.folder import METRICS

OCAR = [sys.executable, "-m", "ocar_lab"]
SLOW = ["--max-tasks", "2", "--device", "cpu", "--threads", "1", "--no-probe", "--passes", "10"]


@pytest.mark.long
def test_a_run_that_is_asked_to_stop_is_saved_and_goes_on(tmp_path: Path) -> None:
    call = ["run", "split-digits", "er", "--out", str(tmp_path / "a"), *SLOW]
    with subprocess.Popen(
        [*OCAR, *call], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not any(f.stat().st_size for f in (tmp_path / "a").rglob(METRICS)):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Stopped. The same command resumes:\n  ocar run split-digits er --out" in err
    assert "1 stopped" in out
    assert "\x1b" not in out + err
    assert "Traceback" not in err
    (stopped,) = find_runs(tmp_path / "a")
    assert stopped.state == "stopped"
    assert main(call) == 0
    whole = ocar_lab.run(small(settings={"passes": 10}, probe=False), out=tmp_path / "b")
    assert_same_run(whole.path, stopped.path)


def test_signals_ask_once_and_the_second_interrupt_leaves() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopRequest() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.long
def test_the_demo_ends_with_a_table_a_picture_and_what_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--seeds", "0", "--workers", "1", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "ocar seed 0: finished" in captured.err
    assert "split-digits: mean ± std" in captured.out
    assert "Try next:" in captured.out
    assert "\x1b" not in captured.out + captured.err
    assert f"Report:             {tmp_path / 'report.html'}" in captured.out
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert {run.label for run in find_runs(tmp_path)} == {"er", "ocar"}


def test_live_metrics_are_as_many_as_fit() -> None:
    message = Progress(
        job=0,
        done=10,
        batches=139,
        resumed=0,
        accuracy=0.5,
        aaa=0.25,
        reported={"loss": 1.0, "tau": 1e-3, "replay_weight": 2.0, "classes": 4},
    )
    whole = live_text(message)
    assert whole == "acc 50.0%  AAA 25.0%  loss 1.000  τ 0.001  λ 2  4 classes"
    for width in range(len(whole) + 1):
        text = live_text(message, width=width)
        assert whole.startswith(text)
        assert len(text) <= width


def test_a_framed_error_is_one_line() -> None:
    framed = (
        "╭─ Unrecognized options ───╮\n│ Unrecognized options:    │\n│ --lrr, 3                 │\n"
        "│ ──────────────────────── │\n│ Perhaps you meant:       │\n│     --lr FLOAT           │\n"
        "╰──────────────────────────╯\n"
    )
    plain = (
        " Unrecognized options \n ---------------------- \n  Unrecognized options: \n  --lrr, 3\n"
        "  ----------------------\n  Perhaps you meant: \n     --lr FLOAT \n"
    )
    for text in (framed, plain):
        assert unbox(text) == "Unrecognized options: --lrr, 3."
    assert unbox("something else\n") == "something else."
