"""The service under faults of the file system: see ``tests/service_faults.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faults import KINDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def sweep(script: str, *options: str) -> dict[str, Any]:
    path = Path(__file__).parents[1] / script
    command = [sys.executable, str(path), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    result: dict[str, Any] = json.loads(ended.stdout)
    print(options, result)
    return result


def test_a_sample_of_all_faults() -> None:
    found = sweep("service_faults.py", "--used", "--step", "100", "--offset", "60")
    assert found["points"] >= len(KINDS)
    assert found["killed"] > 0


@pytest.mark.parametrize("how", ["rollback", "forget"])
def test_a_sample_of_all_faults_in_a_change(how: str) -> None:
    found = sweep("service_change_faults.py", how, "--step", "100", "--offset", "25")
    assert found["points"] == len(KINDS)
    assert found["killed"] > 0


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ["rollback", "forget"])
def test_a_fault_at_every_call_of_a_change(how: str) -> None:
    found = sweep("service_change_faults.py", how)
    assert found["points"] == found["calls"] * len(KINDS)
    assert 0 < found["done"] < found["changed"] < found["points"]


@pytest.mark.long
def test_a_service_that_does_not_sync_its_folder_is_found_out() -> None:
    with pytest.raises(AssertionError, match="in recover"):
        sweep("service_faults.py", "--unsynced", "--kinds", "power", "--step", "20")


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("used", [[], ["--used"]], ids=["new", "used"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_every_call(kind: str, used: list[str]) -> None:
    found = sweep("service_faults.py", "--kinds", kind, *used)
    assert found["points"] == found["calls"]
    dies = kind in ("kill before", "kill after", "torn") or kind.startswith("power")
    assert found["killed"] == (found["calls"] if dies else 0)
