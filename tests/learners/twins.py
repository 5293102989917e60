"""Two learners that must do the same: one is restored, or has a head that really grows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.testing import assert_close
from toys import assert_same, everything, mlp, vectors

import ocar
from ocar.learner import Learner

Batches = Sequence[tuple[Tensor, Tensor]]


def assert_resumes(learner: Learner, batches: Batches, model: nn.Module, folder: Path) -> Learner:
    """A learner that is saved and restored, or copied, learns the batches to the bit as it does."""
    learner.save(folder / "saved")
    restored = ocar.load(folder / "saved", model)
    others = restored, copy.deepcopy(learner)
    for given in ([], batches):
        for x, y in given:
            for one in (learner, *others):
                one.learn(x, y)
        for other in others:
            assert_same(everything(other), everything(learner))
            assert torch.equal(other.predict(batches[0][0]), learner.predict(batches[0][0]))
    return restored


def masked_and_grown(
    make: Callable[[nn.Module], Learner], schedule: Sequence[list[int]]
) -> tuple[Learner, Learner]:
    """A head with units to spare learns as one that gets them when their labels arrive.

    Args:
        make: Makes the learner of a model, in double precision.
        schedule: The labels of each batch, 0 to 4.
    """
    wide, tight = mlp(units=16), mlp(units=16)
    small = tight[2]
    small.weight.data, small.bias.data = small.weight.data[:2].clone(), small.bias.data[:2].clone()
    small.out_features = 2
    masked, grown = make(wide), make(tight)
    for i, labels in enumerate(schedule):
        ((x, y),) = vectors(1, labels, seed=i)
        if max(labels) >= grown.head.capacity:
            grown.head.reserve(max(labels) + 1)
            rows = slice(small.out_features // 2, small.out_features)
            small.weight.data[rows] = wide[2].weight.data[rows]
            small.bias.data[rows] = wide[2].bias.data[rows]
        masked.learn(x.double(), y)
        grown.learn(x.double(), y)
    assert masked.classes == grown.classes
    assert sorted(masked.classes) == [0, 1, 2, 3, 4]
    assert (grown.head.capacity, masked.head.capacity) == (8, 16)
    x = next(vectors(1, [0]))[0].double()
    assert_close(masked.predict(x), grown.predict(x), rtol=1e-8, atol=1e-9)
    return masked, grown
