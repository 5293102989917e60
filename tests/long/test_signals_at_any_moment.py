"""SIGTERM and Ctrl-C at random moments: what was learned is saved, and the run ends the same."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stored_runs import assert_same_run, records, small

import ocar_lab
from ocar.state import load_state
from ocar_lab.runs import read_run
from ocar_lab.runs.folder import CHECKPOINT, METRICS

COMMAND = [sys.executable, "-m", "ocar_lab", "run", "split-digits"]
OPTIONS = ["--max-tasks", "2", "--device", "cpu", "--threads", "1", "--no-probe"]


def lines(folder: Path) -> int:
    path = folder / METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def signalled(folder: Path, call: list[str], number: int, wanted: int) -> tuple[bool, float]:
    """Run until there are so many lines, and send a signal.

    Returns:
        Whether the run was not yet done, and seconds until the process had ended.
    """
    began = lines(folder)
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and lines(folder) < began + wanted:
            time.sleep(0.005)
        sent = time.monotonic()
        process.send_signal(number)
        process.communicate()
    return process.returncode != 0, time.monotonic() - sent


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", ["er", "ocar"])
def test_nothing_is_lost_to_a_signal(tmp_path: Path, method: str) -> None:
    config = small(method=method, probe=False)
    whole = ocar_lab.run(config, out=tmp_path / "whole")
    moment, times = random.Random(method), []
    for case in range(10):
        out = tmp_path / str(case)
        folder, call = out / config.folder(), [*COMMAND, method, *OPTIONS, "--out", str(out)]
        number = (signal.SIGTERM, signal.SIGINT)[case % 2]
        stopped, seconds = signalled(folder, call, number, moment.randrange(1, 40))
        if stopped:
            times.append(seconds)
            assert read_run(folder).state == "stopped"
            position = load_state(folder / CHECKPOINT)[1]["position"]
            assert position == records(folder)[-1]["index"] + 1  # the last batch is in it
        assert subprocess.run(call, capture_output=True, check=False).returncode == 0
        assert_same_run(whole.path, folder)
    assert len(times) >= 5
    print(f"{method}: {len(times)} stopped, after {min(times):.2f} to {max(times):.2f} s")
