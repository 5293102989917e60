"""Samples and classes that are to be forgotten: gone from the memory, and the learner goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases import ALONE, Case, blobs, mlp
from torch import nn
from toys import assert_same, everything

import ocar
from ocar.errors import InputError


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_a_class_is_forgotten_and_the_learner_goes_on_exactly(case: Case, tmp_path: Path) -> None:
    learner = case.make(mlp(2), guard=None)
    batches = list(blobs(8, [0, 1, 2]))
    for x, y in batches[:5]:
        learner.learn(x, y)
    before = learner.memory.class_counts()
    counts = {learner.classes[unit]: count for unit, count in before.items()}
    assert learner.forget(label=1) == counts.pop(1)
    assert learner.forget(label=1) == learner.forget(label=9) == 0
    left = learner.memory.class_counts()
    assert {learner.classes[unit]: count for unit, count in left.items()} == counts
    unit = learner.classes.index(1)
    assert unit not in learner.memory.state_dict()["columns.y"].tolist()
    learner.save(tmp_path / "file")
    other = ocar.load(tmp_path / "file", mlp(2))
    assert torch.equal(other.predict(x), learner.predict(x))
    for each in (learner, other):
        each.learn(*batches[5])
    assert_same(everything(learner), everything(other))


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_a_learner_that_has_forgotten_all_predicts_and_goes_on_exactly(
    case: Case, tmp_path: Path
) -> None:
    learner = case.make(mlp(2), guard=None)
    batches = list(blobs(5, [0, 1, 2]))
    for x, y in batches[:4]:
        learner.learn(x, y)
    for label in learner.classes:
        learner.forget(label=label)
    assert (len(learner.memory), learner.memory.seen) == (0, 0)
    learner.save(tmp_path / "file")
    other = ocar.load(tmp_path / "file", mlp(2))
    said = learner.predict(batches[4][0])
    assert said.shape == (len(batches[4][0]), 3)
    assert said.isfinite().all()
    assert torch.equal(other.predict(batches[4][0]), said)
    for each in (learner, other):
        each.learn(*batches[4])
    assert_same(everything(learner), everything(other))


def test_a_sample_is_forgotten_wherever_it_is_stored(tmp_path: Path) -> None:
    learner = ocar.ER(mlp(), lr=0.1, memory=50, seed=0)
    x, y = next(iter(blobs(1, [0, 1])))
    learner.learn(x, y)
    serving = ocar.Serving(learner)
    said = serving.predict(x).logits
    assert learner.forget(x[3:5]) == 2
    assert torch.equal(serving.predict(x).logits, said)  # the weights have learned it
    stored = learner.memory.state_dict()["columns.x"]
    assert len(learner.memory) == len(x) - 2
    for sample in x[3:5]:
        assert not (stored == sample).all(1).any()
    assert learner.forget(x) == len(x) - 2
    assert (len(learner.memory), learner.memory.seen) == (0, 0)
    learner.save(tmp_path / "file")
    other = ocar.load(tmp_path / "file", mlp())
    for each in (learner, other):
        each.learn(x, y)
    assert_same(everything(learner), everything(other))
    assert len(learner.memory) == len(x)


def test_what_cannot_be_forgotten_is_said() -> None:
    learner = ocar.ER(mlp(), lr=0.1, memory=50)
    x, y = next(iter(blobs(1, [0, 1])))
    learner.learn(x, y)
    with pytest.raises(InputError, match="either the samples to forget, x, or their class"):
        learner.forget()
    with pytest.raises(InputError, match="either the samples"):
        learner.forget(x, label=1)
    with pytest.raises(InputError, match="must hold samples of shape"):
        learner.forget(x[:, :2])
    with pytest.raises(InputError, match="label must be an integer; given '1'"):
        learner.forget(label="1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="A regression has no classes"):
        ocar.ER(mlp(), lr=0.1, memory=5, memory_kind="reservoir", likelihood="gaussian").forget(
            label=1
        )
    latent = ocar.LatentReplay(nn.Linear(x.shape[1], 6), mlp())
    behind = ocar.ER(latent, lr=0.1, memory=50)
    behind.learn(x, y)
    with pytest.raises(InputError, match="features of a frozen backbone"):
        behind.forget(x)
    assert behind.forget(label=int(y[0])) > 0
