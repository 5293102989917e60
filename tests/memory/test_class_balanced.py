"""The class-balanced memory against a brute-force model of its shares and priorities."""

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
    assert_refused_unchanged,
    assert_same,
    assert_uniform,
    feed,
    make,
    stored_ids,
)
from torch import Tensor

from ocar.errors import CheckpointError
from ocar.rng import make_generator


def quota(capacity: int, classes: list[int], label: int) -> int:
    """Deals the slots out one by one to the classes in order of appearance."""
    return Counter(classes[slot % len(classes)] for slot in range(capacity))[label]


@PROPERTY
@given(capacity=CAPACITIES, stream=STREAMS, seed=st.integers(0, 99))
def test_balanced_keeps_the_highest_priorities_of_each_class(
    capacity: int, stream: list[list[int]], seed: int
) -> None:
    memory = make("class-balanced", capacity, seed=seed)
    truth = [label for labels in stream for label in labels]
    generator = make_generator(seed, "memory")
    priorities = torch.rand(len(truth), dtype=torch.float64, generator=generator).tolist()
    done: list[list[int]] = []
    for labels in stream:
        feed(memory, [labels], start=sum(map(len, done)))
        done.append(labels)
        seen = [label for labels in done for label in labels]
        classes = list(dict.fromkeys(seen))
        expected: list[int] = []
        for label in classes:
            ids = [i for i, other in enumerate(seen) if other == label]
            share = quota(capacity, classes, label)
            assert memory.class_counts().get(label, 0) == min(len(ids), share)
            expected += sorted(ids, key=lambda i: -priorities[i])[:share]
        assert sorted(stored_ids(memory)) == sorted(expected)


def test_balanced_is_uniform_within_a_class_and_after_shares_shrank() -> None:
    # 10 slots: class 0 has all, then 5 of 10, then 4 of 10 (the remainder goes to the first).
    stream = [[0] * 12, [0, 1] * 8, [1, 0, 2] * 6]
    truth = [label for labels in stream for label in labels]
    kept, trials = {0: 4, 1: 3, 2: 3}, 1000
    counts = Counter[int]()
    for seed in range(trials):
        memory = make("class-balanced", 10, seed=seed)
        feed(memory, stream)
        counts.update(memory.gather(torch.arange(10)).x[:, 0].tolist())
    for label, share in kept.items():
        ids = [i for i, other in enumerate(truth) if other == label]
        assert_uniform([counts[i] for i in ids], kept=share, trials=trials)


def test_balanced_shares_by_hand() -> None:
    memory = make("class-balanced", 10)
    feed(memory, [[5] * 20])
    assert memory.class_counts() == {5: 10}
    feed(memory, [[3]], start=20)
    assert memory.class_counts() == {3: 1, 5: 5}
    assert len(memory) == 6
    feed(memory, [[3] * 9, [8] * 9], start=21)
    assert memory.class_counts() == {3: 3, 5: 4, 8: 3}


def test_balanced_with_more_classes_than_slots() -> None:
    memory = make("class-balanced", 3)
    feed(memory, [[9, 8, 7, 6], [5, 6, 7, 8, 9], [4]])
    assert memory.class_counts() == {7: 1, 8: 1, 9: 1}
    assert memory.seen == 10


def test_restoring_amid_freed_slots_goes_on_alike() -> None:
    for seed in range(10):
        memory, twin = make("class-balanced", 12, seed=seed), make("class-balanced", 12)
        feed(memory, [[0] * 40, [1]])  # six slots were freed in random order, one is used again
        twin.load_state_dict(memory.state_dict())
        for one in (memory, twin):
            feed(one, [[1, 1], [2], [2, 1, 2]], start=41)
        assert_same(memory.state_dict(), twin.state_dict())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("policy.priorities", torch.zeros(3).double(), "Must be one for each occupied slot"),
        ("policy.priorities", torch.tensor([-1.0, 0, 0, 0]).double(), "Must be one for each occ"),
        (
            "policy.classes",
            torch.tensor([3, 0, 7]),
            r"{3: 2, 0: 1, 7: 0, 5: 1}\. Must be at most {3: 2, 0",
        ),
        (
            "policy.classes",
            torch.tensor([3, 0, 5, 7]),
            r"{3: 2, .*}\. Must be at most {3: 1, 0: 1, 5: 1, 7",
        ),
        (
            "columns.y",
            torch.tensor([3, 3, 0, 0]),
            r"{3: 2, 0: 2, 5: 0}\. Must be at most {3: 2, 0: 1",
        ),
    ],
)
def test_a_bad_balanced_state_is_refused(name: str, value: Tensor, message: str) -> None:
    memory, other = make("class-balanced", 4), make("class-balanced", 4)
    feed(memory, [[0, 1, 2]])
    feed(other, [[3, 3, 3, 0, 0, 5], [5, 5]])
    bad = other.state_dict() | {name: value}
    assert_refused_unchanged(memory, lambda: memory.load_state_dict(bad), CheckpointError, message)


def test_a_state_of_the_other_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"Must be .*'policy.priorities'"):
        make("class-balanced", 4).load_state_dict(make("reservoir", 4).state_dict())
