"""What the paper says of its tables, and whether it holds in our numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Some methods are better than all of some others."""

    metric: str
    """In what, by its name in ``Summary``."""

    leaders: tuple[str, ...]
    """The methods that are better."""

    others: tuple[str, ...]
    """The methods that they are better than."""

    lower: bool = False
    """Whether less is better."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a claim stands."""

    claim: Claim
    """The claim."""

    state: Literal["holds", "does not hold", "open"]
    """``open``: nothing is against it, and something is missing."""

    against: tuple[tuple[str, str], ...]
    """Each leader and other that are the wrong way round, or equal."""

    missing: tuple[str, ...]
    """Methods without a number."""

    values: Mapping[str, float]
    """The numbers that were compared, by method."""

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


def check(claim: Claim, values: Mapping[str, float]) -> Verdict:
    """Whether a claim holds.

    Args:
        claim: The claim.
        values: Our means by method, for those that there are.
    """
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
