"""Streams that were built to break a learner, each for a short while; see ``experiments``."""

from __future__ import annotations

from types import ModuleType

import pytest
from scripts import load_script

from ocar.guard import Guard


@pytest.fixture(scope="module")
def hostile() -> ModuleType:
    return load_script("experiments/hostile_streams.py")


@pytest.fixture
def short(hostile: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Every fourth batch of the sane stream."""
    every = hostile.sane_batches
    monkeypatch.setattr(hostile, "sane_batches", lambda seed: every(seed)[::4])
    return hostile


COUNTED = {"scaled": "out_of_scale", "zeros": "copies", "duplicates": "copies"}
STREAMS = ("zeros", "scaled", "duplicates", "one_class", "shuffled", "new_classes")


def test_every_stream_is_tried(hostile: ModuleType) -> None:
    assert set(hostile.STREAMS) == set(STREAMS)


@pytest.mark.long
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_learner_is_finite_afterwards(short: ModuleType, name: str, model: str) -> None:
    length = 1 if name in ("one_class", "new_classes") else 6
    result = short.one_run(name, "ocar", model, 0, Guard(), length)
    assert result["finite"]
    assert result["error"] is None
    assert result["accuracy"] > 0.2
    if name in COUNTED:
        assert result["guarded"][COUNTED[name]] == length


def test_without_a_guard_scaled_inputs_spoil_the_learner(short: ModuleType) -> None:
    guarded, bare, sane = (
        short.one_run(name, "ocar", "mlp", 0, guard, 6)
        for name, guard in (("scaled", Guard()), ("scaled", None), (None, None))
    )
    assert guarded["accuracy"] > sane["accuracy"] - 0.1
    assert not bare["finite"] or bare["accuracy"] < sane["accuracy"] - 0.2
