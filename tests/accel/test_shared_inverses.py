"""Which rank inverts which layer."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ocar.accel import Pair
from ocar.accel.shared_inverses import cost, share_out


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=6), st.integers(1, 3))
def test_the_longest_share_is_at_most_a_third_above_the_least_possible(
    sizes: list[tuple[int, int]], count: int
) -> None:
    """Graham, 1969: 4/3 - 1/(3m) for m machines, the longest job first."""
    pairs = [Pair(f"{index}", 1, *size) for index, size in enumerate(sizes)]
    owners = share_out(pairs, count)
    assert owners.keys() == {pair.layer for pair in pairs}

    def longest(ranks: tuple[int, ...]) -> int:
        each = zip(pairs, ranks, strict=True)
        loads = [0] * count
        for pair, rank in each:
            loads[rank] += cost(pair)
        return max(loads)

    found = longest(tuple(owners[pair.layer] for pair in pairs))
    least = min(map(longest, itertools.product(range(count), repeat=len(pairs))))
    assert 3 * count * found <= (4 * count - 1) * least


def test_groups_and_parts_count() -> None:
    assert cost(Pair("a", 1, 4, 3)) == 64 + 27
    assert cost(Pair("a", 2, 4, 3, parts=5)) == 2 * (5 * 64 + 27)
