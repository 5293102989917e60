"""Runs killed with SIGKILL at random moments end the same as runs that were not."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stored_runs import assert_same_run, small

import ocar_lab
from ocar_lab.runs import read_run
from ocar_lab.runs.folder import METRICS, STATUS

RUN = """
import sys
import ocar_lab
config = ocar_lab.RunConfig(
    benchmark="split-digits", method=sys.argv[2], max_tasks=2, device="cpu", threads=1,
    checkpoint_every=int(sys.argv[3]), probe=False,
)
ocar_lab.run(config, out=sys.argv[1])
"""


def run_killed_once(
    out: Path, folder: Path, method: str, checkpoint_every: int, moment: random.Random
) -> bool:
    """Run in a process of its own, and kill it at some moment; whether it was not yet done."""
    command = [sys.executable, "-c", RUN, str(out), method, str(checkpoint_every)]
    wanted = moment.randrange(50)
    with subprocess.Popen(command) as process:
        began = _lines(folder)
        while process.poll() is None:
            # From the first sign of life on: also while it makes the learner, or restores it.
            if (folder / STATUS).exists() and _lines(folder) >= min(began + wanted, 50):
                break
            time.sleep(0.01)
        time.sleep(moment.random() * 0.05)
        process.send_signal(signal.SIGKILL)
    return process.returncode == -signal.SIGKILL


def _lines(folder: Path) -> int:
    path = folder / METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def check(tmp_path: Path, method: str, seed: int, *, checkpoint_every: int, most: int) -> int:
    """A run that is killed a few times against one that is not; returns how often it was."""
    config = small(method=method, checkpoint_every=checkpoint_every, probe=False)
    whole = tmp_path / "whole"
    ocar_lab.run(config, out=whole)
    out = tmp_path / f"killed-{seed}"
    moment = random.Random(seed)
    kills = 0
    while kills < most:
        if run_killed_once(out, out / config.folder(), method, checkpoint_every, moment):
            kills += 1
            if (out / config.folder()).exists():
                read_run(out / config.folder())  # whatever is left can be read
        elif kills:
            break
        else:
            shutil.rmtree(out)  # it was done before it could be killed: once more
    run = ocar_lab.run(config, out=out)
    assert run.state == "finished"
    assert not list(run.path.glob("*.partial"))
    assert_same_run(whole / config.folder(), run.path)
    return kills


@pytest.mark.long
@pytest.mark.parametrize(("method", "checkpoint_every", "most"), [("er", 1, 1), ("ocar", 3, 1)])
def test_a_killed_run_ends_as_one_that_was_not(
    tmp_path: Path, method: str, checkpoint_every: int, most: int
) -> None:
    assert check(tmp_path, method, 0, checkpoint_every=checkpoint_every, most=most) >= 1


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 50, 5))
def test_fifty_runs_killed_at_random_moments(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 5):
        kills = check(
            tmp_path,
            ("er", "ocar")[seed % 2],
            seed,
            checkpoint_every=(1, 2, 3, 5, 8)[seed // 2 % 5],
            most=2,
        )
        assert kills > 0
