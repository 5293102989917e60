"""A rank that is given a bad batch, is slow or dies: nobody waits for ever, and it is named."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from rank_cases import finish, start_ranks

WORKER = Path(__file__).with_name("rank_faults.py")

RAISED = {
    "labels": "InputError: Rank 1 was given a bad batch. y must have one entry for each of",
    "shape": "InputError: The ranks were given different samples: rank 0",
    "settings": "ConfigError: The ranks have different settings: rank 0 has ERSettings(lr=0.1",
    "model": "ConfigError: The ranks have different models: rank 0 has Sequential",
    "method": "ConfigError: MIRSettings cannot be used with 2 ranks: MIR tries a step",
    "curvature": "ConfigError: DenseFisher cannot be shared out over ranks. Use KFAC",
    "norms": "ConfigError: norm_layers=True cannot be shared out over ranks where there is",
    "head": "ConfigError: Invalid closed_form_head=True. Must be None or False: each rank has",
    "service": "ConfigError: A service learns in one process.",
    "forget": "ConfigError: The ranks have different samples to forget: rank 0 has those in",
    "weights": "RankError: The weights of ranks",
}
"""What every rank raises, by what is wrong on the last."""


def test_every_rank_raises_the_error_of_one(tmp_path):
    first, second = finish(start_ranks(2, [str(tmp_path), *RAISED, "saved"], WORKER))
    for fault, message in RAISED.items():
        for text in (first, second):
            assert f"{fault}: {message}" in text
    assert "saved: FileExistsError" in first
    assert "saved: RankError: Rank 0 failed. FileExistsError" in second


@pytest.mark.long
def test_a_rank_that_is_slow_is_named(tmp_path):
    *others, late = finish(start_ranks(3, [str(tmp_path), "slow"], WORKER))
    for text in others:
        assert "within 30 s: rank 2 did not answer" in text
    assert "RankError: Rank 2 could not reach the others" in late


def test_a_rank_that_dies_is_named(tmp_path):
    processes = start_ranks(3, [str(tmp_path), "killed"], WORKER)
    *texts, _ = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, -signal.SIGKILL]
    assert "within 30 s: rank 2 did not answer" in texts[0]
    assert "RankError: Rank 1 could not reach the others" in texts[1]
