"""Blurry boundaries: nothing lost, sizes kept, and exactly the asked part comes from elsewhere."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ocar.errors import ConfigError
from ocar.streams.blur import blur, exchanged


def make_tasks(sizes: list[int]) -> list[torch.Tensor]:
    """Sample ``1000 · t + i`` is number i of task t."""
    return [1000 * task + torch.arange(size) for task, size in enumerate(sizes)]


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 1000),
)
def test_part_of_each_task_changes_places(sizes: list[int], fraction: float, seed: int) -> None:
    before = make_tasks(sizes)
    kept = [task.clone() for task in before]
    after = blur(before, fraction=fraction, generator=torch.Generator().manual_seed(seed))
    assert all(torch.equal(a, b) for a, b in zip(before, kept, strict=True))
    assert [len(task) for task in after] == sizes
    assert sorted(torch.cat(after).tolist()) == sorted(torch.cat(before).tolist())
    wanted = [round(fraction * size) for size in sizes]
    for task, (old, new) in enumerate(zip(before, after, strict=True)):
        foreign = new // 1000 != task
        assert torch.equal(new[~foreign], old[~foreign])  # the others stay where they were
        others = sum(wanted) - wanted[task]
        assert int(foreign.sum()) == min(wanted[task], others)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6), st.floats(0, 1))
def test_no_task_gives_more_than_the_others_take(sizes: list[int], fraction: float) -> None:
    counts = exchanged(sizes, fraction)
    assert all(2 * count <= sum(counts) for count in counts)
    assert all(count <= round(fraction * n) for count, n in zip(counts, sizes, strict=True))


def test_samples_are_dealt_evenly() -> None:
    moves: Counter[tuple[int, int]] = Counter()
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        for task, samples in enumerate(
            blur(make_tasks([30] * 4), fraction=0.2, generator=generator)
        ):
            moves.update((int(sample) // 1000, task) for sample in samples)
    foreign = [moves[a, b] for a in range(4) for b in range(4) if a != b]
    assert sum(foreign) == 200 * 4 * 6
    # 4800 moves over 12 pairs: 400 each, with a standard deviation below 20.
    assert max(abs(count - 400) for count in foreign) < 100


def test_wrong_fractions_are_refused() -> None:
    generator = torch.Generator()
    for fraction in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=r"Invalid blurry=.*Must be in \[0, 1\)"):
            blur(make_tasks([3, 3]), fraction=fraction, generator=generator)
    with pytest.raises(ConfigError, match="Must be 0 where there is one task only"):
        blur(make_tasks([3]), fraction=0.5, generator=generator)
