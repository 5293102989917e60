"""Samples that tell their number, and how to offer them to a memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from ocar.memory import MEMORIES, Batch, Memory

# A chi-square statistic above this quantile fails. The seeds are fixed, so a pass stays a pass.
CHI_SQUARE_LEVEL = 0.999

EVERY_MEMORY = pytest.mark.parametrize("kind", sorted(MEMORIES))

# No deadline: a busy machine is not a failure.
PROPERTY = settings(deadline=None, max_examples=50)

# A stream: batches of labels. Sample i is the i-th label of the whole stream.
STREAMS = st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=12)
CAPACITIES = st.integers(1, 12)


def encode(ids: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
    """An input and an extra that both give away the number of the sample."""
    number = torch.tensor(ids, dtype=torch.int64)
    return torch.stack([number, number**2], dim=1), {"logits": number.double()[:, None] / 7}


def feed(memory: Memory, stream: list[list[int]], *, start: int = 0) -> None:
    for labels in stream:
        x, extras = encode(list(range(start, start + len(labels))))
        memory.add(x, torch.tensor(labels, dtype=torch.int64), extras)
        start += len(labels)


def make(kind: str, capacity: int, *, seed: int = 0) -> Memory:
    return MEMORIES[kind](capacity, extras=("logits",), seed=seed)


def contents(memory: Memory) -> Batch:
    """Everything stored, by slot, read without the memory's generator."""
    return memory.gather(memory._slots)


def stored_ids(memory: Memory) -> list[int]:
    return contents(memory).x[:, 0].tolist() if len(memory) else []


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name


def chi_square_limit(freedom: int) -> float:
    """Wilson and Hilferty's approximation of the quantile."""
    z = NormalDist().inv_cdf(CHI_SQUARE_LEVEL)
    variance = 2 / (9 * freedom)
    return freedom * math.pow(1 - variance + z * math.sqrt(variance), 3)


def assert_uniform(counts: list[int], *, kept: int, trials: int) -> None:
    """Each trial kept ``kept`` of ``len(counts)`` items: were all subsets equally likely?"""
    n = len(counts)
    assert sum(counts) == kept * trials
    p = kept / n
    # Inclusion indicators have variance p(1-p) and covariance -p(1-p)/(n-1).
    spread = sum((count - trials * p) ** 2 for count in counts)
    assert spread * (n - 1) / (n * trials * p * (1 - p)) < chi_square_limit(n - 1)


def assert_refused_unchanged(
    memory: Memory, action: Callable[[], object], error: type[Exception], message: str
) -> None:
    before = memory.state_dict()
    with pytest.raises(error, match=message):
        action()
    assert_same(memory.state_dict(), before)
    twin = memory.bind(seed=1)
    twin.load_state_dict(before)
    for one in (memory, twin):  # what is derived from the state is as it was, too
        feed(one, [[0, 4, 1, 4]] * 3, start=50)
    assert_same(memory.state_dict(), twin.state_dict())
    assert memory.labels.tolist() == twin.labels.tolist()
