"""``experiments/first_task_times.py``: each method in its own process, after a warm-up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts import ROOT
from test_light_imports import REFUSE

CALL = """
from pathlib import Path
from threading import Event
from ocar_lab.experiment import RunConfig

sys.path.insert(0, "experiments")
import first_task_times

begin, folders = Event(), []
begin.set()
first_task_times.run_events = lambda config, out, events=first_task_times.run_events: (
    folders.append(out) or events(config, out=out)
)
config = RunConfig(benchmark="convex", method="er", device="cpu", max_batches=3)
first_task_times.measure(config, [0], Path(sys.argv[1]), begin)
first_task_times.measure(config, [0, 1], Path(sys.argv[1]), begin)
print(*(str(folder) == sys.argv[1] for folder in folders))
"""


def test_a_warm_up_comes_before_what_is_measured(tmp_path: Path) -> None:
    code = f"{REFUSE}{CALL}"  # without the packages of the command line
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ended.returncode == 0, ended.stderr
    first, *again, folders = ended.stdout.splitlines()
    assert first.startswith("er seed 0: ")
    assert again[0] == "er seed 0: already finished"
    assert again[1].endswith(" s")
    assert folders == "False True False True True"
