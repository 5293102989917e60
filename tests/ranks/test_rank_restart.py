"""Checkpoints do not depend on the number of ranks, and torchrun goes on from them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rank_cases import finish, make_model, make_stream, start_ranks
from scripts import ROOT
from torch.testing import assert_close

import ocar
from ocar.state import load_state

WORKER = Path(__file__).with_name("rank_saved.py")


def torchrun(script: Path, *arguments: str, restarts: int = 0) -> str:
    """What a script prints that torchrun runs with two processes."""
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    options = ["--nproc-per-node=2", f"--max-restarts={restarts}", "--monitor-interval=0.1"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            *options,
            script,
            *arguments,
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_restarts(folder: Path, kills: int, limit: int) -> None:
    """Compare the checkpoint of a run that was killed with that of an unbroken one."""
    given = ["--limit", str(limit), "--out"]
    unbroken = torchrun(ROOT / "examples/ranks.py", *given, str(folder / "unbroken"))
    killed = Path(__file__).with_name("rank_killed.py")
    text = torchrun(killed, str(kills), *given, str(folder / "killed"), restarts=kills)
    assert f"start {kills}" in text
    assert unbroken.strip() == text.splitlines()[-1]
    tensors, values = load_state(folder / "unbroken" / "checkpoint")
    again, others = load_state(folder / "killed" / "checkpoint")
    assert values == others
    assert tensors.keys() == again.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, again[name]), name


@pytest.mark.long
def test_the_example_goes_on_after_a_kill(tmp_path):
    check_restarts(tmp_path, kills=1, limit=50)


@pytest.mark.sweep
@pytest.mark.timeout(1800)
def test_ten_kills_at_random_moments_change_nothing(tmp_path):
    check_restarts(tmp_path, kills=10, limit=10_000)


@pytest.mark.long
def test_a_checkpoint_goes_on_with_another_number_of_ranks(tmp_path):
    stream = make_stream("batchnorm", 12)
    settings = {"memory": 30, "passes": 2, "seed": 5}
    whole = ocar.OCAR(make_model("batchnorm"), **settings)
    for x, y in stream:
        whole.learn(x, y)
    # 4 ranks learn four batches, 2 ranks with a sharded memory four, one process the last four.
    file = tmp_path / "ckpt"
    finish(start_ranks(4, [str(file), "0", "4", "replicated"], WORKER))
    finish(start_ranks(2, [str(file), "4", "8", "sharded"], WORKER))
    last = ocar.load(file, make_model("batchnorm"))
    assert last.batches == 8
    for x, y in stream[8:]:
        last.learn(x, y)
    tensors, values = whole.state()
    found, others = last.state()
    assert values == others
    for name, tensor in tensors.items():
        assert_close(found[name], tensor, rtol=0.0, atol=1e-9, msg=name)
