"""The reservoir against algorithm R, probability theory and regression targets."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from offers import (
    CAPACITIES,
    PROPERTY,
    STREAMS,
    assert_same,
    assert_uniform,
    feed,
    make,
    stored_ids,
)

from ocar.errors import InputError
from ocar.memory import ClassBalancedMemory, ReservoirMemory
from ocar.rng import make_generator


@PROPERTY
@given(capacity=CAPACITIES, stream=STREAMS, seed=st.integers(0, 99))
def test_reservoir_is_algorithm_r(capacity: int, stream: list[list[int]], seed: int) -> None:
    memory = make("reservoir", capacity, seed=seed)
    feed(memory, stream)
    generator = make_generator(seed, "memory")
    slots: list[int] = []
    for i in range(sum(map(len, stream))):
        if i < capacity:
            slots.append(i)
            continue
        j = int(torch.rand((), dtype=torch.float64, generator=generator) * (i + 1))
        if j < capacity:
            slots[j] = i
    assert stored_ids(memory) == slots


def test_reservoir_is_uniform() -> None:
    n, kept, trials = 9, 4, 1500
    counts = Counter[int]()
    for seed in range(trials):
        memory = make("reservoir", kept, seed=seed)
        feed(memory, [[0] * 6, [1] * 3])
        counts.update(memory.gather(torch.arange(kept)).x[:, 0].tolist())
    assert_uniform([counts[i] for i in range(n)], kept=kept, trials=trials)


def test_float_targets() -> None:
    memory = ReservoirMemory(4)
    y = torch.linspace(-1, 1, 18).reshape(9, 2)
    memory.add(torch.arange(9.0), y)
    batch = memory.sample(4)
    assert torch.equal(batch.y, y[batch.x.long()])
    with pytest.raises(InputError, match=r"stored targets are torch\.float32"):
        memory.class_counts()
    twin = ReservoirMemory(4)
    twin.load_state_dict(memory.state_dict())
    assert_same(twin.state_dict(), memory.state_dict())
    assert len(twin) == 4


def test_float_targets_are_for_the_reservoir_alone() -> None:
    with pytest.raises(InputError, match=r"Invalid y: 1-D torch.float32\. Must be 1-D torch.int64"):
        ClassBalancedMemory(4).add(torch.zeros(2), torch.zeros(2))
    with pytest.raises(InputError, match=r"Invalid labels beside torch.float32 targets"):
        ReservoirMemory(4).add(torch.zeros(2), torch.zeros(2), labels=[0, 0])
