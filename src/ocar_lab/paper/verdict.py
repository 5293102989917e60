"""A claim of the paper, and whether it holds in our numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ocar.streams.split import Splits
from ocar_lab.runs.paired import Interval


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Some methods are better than all of some others."""

    metric: str
    leaders: tuple[str, ...]  # the better methods
    others: tuple[str, ...]
    others_named: str = "every baseline"  # the same in words
    lower: bool = False  # whether lower is better


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a claim holds in our numbers."""

    claim: Claim
    state: Literal["holds", "does not hold", "open"]  # open: nothing against it, some missing
    against: tuple[tuple[str, str], ...]  # each leader and other in the wrong order, or equal
    missing: tuple[str, ...]  # methods without a number
    values: Mapping[str, float]  # the numbers, by method
    splits: Splits | None = None  # of all numbers, where there are several kinds
    seeds: tuple[int, ...] = ()  # of all numbers, where they come from runs
    interval: Interval | None = None  # 95 %, of the closest leader less the other, by seed
    #: Settings that differ from the present preset, by method, of those where some do.
    changed: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def closest(self) -> tuple[str, str] | None:
        """The worst leader and the best of the others; None without both."""
        sign = -1 if self.claim.lower else 1
        leaders = [name for name in self.claim.leaders if name in self.values]
        others = [name for name in self.claim.others if name in self.values]
        if not leaders or not others:
            return None
        return (
            min(leaders, key=lambda name: sign * self.values[name]),
            max(others, key=lambda name: sign * self.values[name]),
        )

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


def changed_settings(
    given: Mapping[str, Mapping[str, object]], *, allowed: Collection[str] = ()
) -> dict[str, dict[str, object]]:
    """Settings by method, of the methods that have any but the splits and those ``allowed``."""
    found = {}
    for method, settings in given.items():
        names = settings.keys() - {"splits", *allowed}
        if names:
            found[method] = {name: value for name, value in settings.items() if name in names}
    return found


def check(claim: Claim, values: Mapping[str, float]) -> Verdict:
    """Check a claim in our means, by method."""
    sign = -1 if claim.lower else 1
    named = (*claim.leaders, *claim.others)
    there = {name: values[name] for name in named if name in values}
    against = tuple(
        (leader, other)
        for leader in claim.leaders
        for other in claim.others
        if leader in there and other in there and sign * there[leader] <= sign * there[other]
    )
    missing = tuple(name for name in named if name not in there)
    return Verdict(
        claim=claim,
        state="does not hold" if against else "open" if missing else "holds",
        against=against,
        missing=missing,
        values=there,
    )
