"""``ocar run`` under faults of the file system: see ``tests/run_faults.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from faults import KINDS


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("power")])
def test_a_run_ends_the_same_after_a_fault(kind: str) -> None:
    script = Path(__file__).parents[1] / "run_faults.py"
    command = [sys.executable, str(script), "--kinds", kind]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout)
    assert found["points"] == found["calls"]
    print(kind, found)
