"""Memories that forget by age against their definitions and the distribution of ages."""

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
    chi_square_limit,
    encode,
    feed,
    make,
    stored_ids,
)

from ocar.errors import ConfigError
from ocar.memory import ExponentialMemory, ReservoirMemory, WindowMemory
from ocar.rng import make_generator


@PROPERTY
@given(capacity=CAPACITIES, stream=STREAMS)
def test_a_window_holds_the_last_samples(capacity: int, stream: list[list[int]]) -> None:
    memory = make("window", capacity)
    feed(memory, stream)
    offered = range(sum(map(len, stream)))
    assert sorted(stored_ids(memory)) == list(offered[-capacity:])


@PROPERTY
@given(capacity=CAPACITIES, more=st.integers(0, 20), stream=STREAMS, seed=st.integers(0, 99))
def test_the_exponential_memory_is_a_biased_reservoir(
    capacity: int, more: int, stream: list[list[int]], seed: int
) -> None:
    horizon = capacity + more
    memory = ExponentialMemory(capacity, horizon=horizon, extras=("logits",), seed=seed)
    feed(memory, stream)
    generator = make_generator(seed, "memory")
    slots: list[int] = []
    for i in range(sum(map(len, stream))):
        if i < capacity:
            slots.append(i)
            continue
        uniform = float(torch.rand((), dtype=torch.float64, generator=generator))
        kept = capacity / min(i + 1, horizon)  # the probability that sample i is kept
        if uniform < kept:
            slots[int(uniform / kept * capacity)] = i
    assert stored_ids(memory) == slots


@pytest.mark.parametrize("horizon", [4, 12])
def test_ages_are_exponential(horizon: int) -> None:
    """A stored sample taken at random is of age a with probability (1 − 1/h)ᵃ / h.

    The first h samples share what is left.
    """
    capacity, offered, trials = 4, 40, 2000
    ages = Counter[int]()
    for seed in range(trials):
        memory = ExponentialMemory(capacity, horizon=horizon, extras=("logits",), seed=seed)
        feed(memory, [[0] * 5] * (offered // 5))
        ages[offered - 1 - int(memory.sample(1).x[0, 0])] += 1
    kept = 1 - 1 / horizon
    bins = range(offered - horizon)
    expected = [trials * kept**age / horizon for age in bins]
    counts = [ages[age] for age in bins]
    while expected[-1] < 5:  # for a chi-square distribution
        expected.pop()
        counts.pop()
    expected.append(trials - sum(expected))
    counts.append(trials - sum(counts))
    pairs = zip(counts, expected, strict=True)
    spread = sum((count - mean) ** 2 / mean for count, mean in pairs)
    assert spread < chi_square_limit(len(expected) - 1)


def test_until_its_horizon_it_is_a_reservoir() -> None:
    memory, reservoir = ExponentialMemory(5, horizon=30), ReservoirMemory(5)
    x, y = torch.arange(30), torch.zeros(30, dtype=torch.int64)
    for one in (memory, reservoir):
        one.add(x, y)
    assert memory.sample(5).x.tolist() == reservoir.sample(5).x.tolist()


def test_what_a_memory_represents() -> None:
    represented = {
        make("reservoir", 6): 50,
        make("class-balanced", 6): 50,
        WindowMemory(6, extras=("logits",)): 6,
        ExponentialMemory(6, extras=("logits",)): 6,
        ExponentialMemory(6, horizon=20, extras=("logits",)): 20,
    }
    for memory, number in represented.items():
        feed(memory, [[0, 1]] * 2)
        assert memory.represents == 4
        feed(memory, [[0, 1]] * 23)
        assert memory.represents == number


def test_float_targets_are_forgotten_too() -> None:
    for memory in (WindowMemory(4), ExponentialMemory(4)):
        x, _ = encode(list(range(60)))
        memory.add(x, x.double() / 2)
        batch = memory.sample(4)
        assert torch.equal(batch.y, batch.x.double() / 2)
        assert batch.x[:, 0].min() > 10


def test_the_horizon_is_at_least_the_capacity() -> None:
    with pytest.raises(ConfigError, match=r"Invalid horizon=9\. Must be at least the capacity, 10"):
        ExponentialMemory(10, horizon=9)
    memory = ExponentialMemory(10, horizon=25).bind(seed=4)
    assert (memory.horizon, memory.seed) == (25, 4)
    assert "horizon=25" in repr(memory)
