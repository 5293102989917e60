"""Two commands given the same folder: one works, the other says so and leaves."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ocar_lab.runs import find_runs
from ocar_lab.runs.folder import METRICS
from ocar_lab.tune.study import JOURNAL

OCAR = [sys.executable, "-m", "ocar_lab"]
SHORT = ["--device", "cpu", "--threads", "1"]


@contextmanager
def working(call: list[str], out: Path, sign: str) -> Iterator[subprocess.Popen[str]]:
    """A command that has begun to work in a folder: there is something in a file of that name."""
    with subprocess.Popen(
        [*OCAR, *call], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while not any(path.stat().st_size for path in out.rglob(sign)):
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("command", ["run", "tune"])
def test_the_second_command_says_who_works_there_and_leaves(tmp_path: Path, command: str) -> None:
    own = {
        "run": ["run", "split-digits", "er", "--passes", "60", "--no-probe"],
        "tune": ["tune", "split-digits", "er", "--trials", "400"],
    }[command]
    call = [*own, *SHORT, "--out", str(tmp_path)]
    with working(call, tmp_path, {"run": METRICS, "tune": JOURNAL}[command]) as first:
        second = subprocess.run([*OCAR, *call], capture_output=True, text=True, check=False)
        assert first.poll() is None  # it goes on
        assert second.returncode == 1
        assert re.search(rf"is in use by process {first.pid} on .+ Wait until", second.stderr)
        assert "Traceback" not in second.stderr
        if command == "run":
            (run,) = find_runs(tmp_path)
            assert run.state == "running"
            assert len(run.status["sessions"]) == 1
