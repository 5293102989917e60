"""The arithmetic of a measurement, with a clock that the test moves: no time is measured here."""

from __future__ import annotations

import pytest
import torch
from benchmarks import Setup
from benchmarks.inside import REST
from benchmarks.parts import Parts
from benchmarks.results import Target, compare, take_apart
from benchmarks.timing import MOST_CALLS, calls_in_a_turn, take_turns

CPU = torch.device("cpu")


class Hand:
    """A clock that only moves when it is pushed."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def push(self, seconds: float) -> None:
        self.now += seconds


def test_a_ratio_is_of_the_medians_and_its_spread_of_the_turns() -> None:
    found = compare("x", {"a": [2.0, 4.0, 9.0], "b": [1.0, 4.0, 3.0]}, "a", "b", unit="s", note="n")
    assert found.ratio == 4 / 3
    assert (found.smallest, found.largest) == (1.0, 3.0)
    assert (found.time_above, found.time_below) == (4.0, 3.0)
    assert (found.above, found.below, found.turns, found.unit) == ("a", "b", 3, "s")


def test_sides_with_different_numbers_of_turns_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare("x", {"a": [1.0], "b": [1.0, 2.0]}, "a", "b")


@pytest.mark.parametrize(
    ("relation", "ratio", "met"),
    [("at most", 2.0, True), ("at most", 2.01, False), ("at least", 2.0, True)],
)
def test_a_target_includes_its_value(relation: str, ratio: float, met: bool) -> None:
    target = Target(relation=relation, value=2)  # type: ignore[arg-type]
    assert target.met(ratio) is met
    assert str(target) == f"{relation} 2"


def test_sides_take_turns_after_a_warm_up() -> None:
    hand, order = Hand(), []
    durations = {"a": iter([100.0, 1.0, 2.0, 3.0]), "b": iter([100.0, 10.0, 20.0, 30.0])}

    def call(name: str) -> None:
        order.append(name)
        hand.push(next(durations[name]))

    sides = {"a": lambda: call("a"), "b": lambda: call("b")}
    times = take_turns(sides, Setup(device=CPU, turns=3, least=0.0), clock=hand)
    assert times == {"a": [1.0, 2.0, 3.0], "b": [10.0, 20.0, 30.0]}
    assert order == ["a", "b", *["a", "b"] * 3]


def test_a_turn_of_short_calls_has_many_of_them_and_gives_the_time_of_one() -> None:
    hand, calls = Hand(), []

    def call() -> None:
        calls.append(1)
        hand.push(0.25)

    times = take_turns({"a": call}, Setup(device=CPU), turns=2, least=1.0, clock=hand)
    assert times == {"a": [0.25, 0.25]}
    assert len(calls) == 1 + 1 + 2 * 4  # to warm up, to see how long it takes, two turns


@pytest.mark.parametrize(
    ("once", "least", "calls"),
    [(0.1, 0.0, 1), (0.1, 0.25, 3), (2.0, 1.0, 1), (1e-9, 1.0, MOST_CALLS), (0, 1, MOST_CALLS)],
)
def test_calls_in_a_turn(once: float, least: float, calls: int) -> None:
    assert calls_in_a_turn(once, least) == calls


def test_parts_come_with_their_shares_the_largest_first() -> None:
    found = take_apart("x", {"small": 1.0, "large": 3.0}, unit="s")
    assert [(p.name, p.amount, p.share) for p in found.parts] == [
        ("large", 3.0, 0.75),
        ("small", 1.0, 0.25),
    ]
    assert found.total == 4.0
    assert take_apart("x", {"nothing": 0.0}, unit="s").parts[0].share == 0.0


def test_a_stopwatch_gives_each_moment_to_one_part() -> None:
    hand = Hand()

    class Work:
        def inner(self) -> None:
            hand.push(2)

        def outer(self) -> str:
            hand.push(1)
            self.inner()
            hand.push(4)
            return "done"

    parts, work, other = Parts(hand), Work(), Work()
    parts.follow(work, "inner", "inner")
    parts.follow(work, "outer", "outer", then="after")
    hand.push(8)
    assert work.outer() == "done"
    hand.push(16)
    parts.switch(REST)
    other.outer()  # another object is not followed
    parts.switch(REST)
    assert parts.seconds == {REST: 8 + 7, "outer": 5, "inner": 2, "after": 16}
    assert sum(parts.seconds.values()) == hand.now
