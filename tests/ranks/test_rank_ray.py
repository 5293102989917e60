"""Workers of Ray Train learn together as one process does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import ROOT
from torch.testing import assert_close

from ocar.state import load_state


def learn(example: str, out: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "examples" / example, "--limit", "12", "--out", out],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        check=True,
    )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_workers_of_ray_train_learn_as_one_process_does(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="ray[train] is not installed", exc_type=ImportError)
    learn("ranks.py", tmp_path / "one")
    learn("ranks_ray.py", tmp_path / "ray")
    tensors, values = load_state(tmp_path / "one" / "checkpoint")
    found, others = load_state(tmp_path / "ray" / "checkpoint")
    assert values == others
    assert tensors.keys() == found.keys()
    for name, tensor in tensors.items():
        assert_close(found[name], tensor, rtol=1e-3, atol=1e-4, msg=name)  # in float32
