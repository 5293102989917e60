"""What a measurement says: a ratio, a whole by its parts, or why there is nothing to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

BATCH = "s a stream batch"
"""The unit of nearly all times here."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a ratio should be."""

    relation: Literal["at most", "at least"]
    """On which side of the value."""

    value: float
    """The value."""

    def met(self, ratio: float) -> bool:
        """Whether a ratio is as it should be."""
        return ratio <= self.value if self.relation == "at most" else ratio >= self.value

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Two sides that were measured in turns."""

    name: str
    """What is compared, in a word or two."""

    above: str
    """What stands above the line."""

    below: str
    """What stands below the line."""

    ratio: float
    """Median time of the one over median time of the other."""

    smallest: float
    """The smallest ratio of a turn."""

    largest: float
    """The largest ratio of a turn."""

    time_above: float
    """Median time of what stands above."""

    time_below: float
    """Median time of what stands below."""

    turns: int
    """How many turns each side had."""

    unit: str = BATCH
    """What the times are."""

    note: str = ""
    """What one should know to read it."""

    target: Target | None = None
    """What the ratio should be, if that was ever said."""


def compare(
    name: str,
    above: tuple[str, Sequence[float]],
    below: tuple[str, Sequence[float]],
    *,
    unit: str = BATCH,
    note: str = "",
    target: Target | None = None,
) -> Ratio:
    """The ratio of two sides, with its spread.

    A turn that something else disturbed moves the spread, not the medians.

    Args:
        name: What is compared.
        above: What stands above the line, and its time in each turn.
        below: What stands below the line, and its time in each turn.
        unit: What the times are.
        note: What one should know to read it.
        target: What the ratio should be.
    """
    ratios = [a / b for a, b in zip(above[1], below[1], strict=True)]
    return Ratio(
        name=name,
        above=above[0],
        below=below[0],
        ratio=median(above[1]) / median(below[1]),
        smallest=min(ratios),
        largest=max(ratios),
        time_above=median(above[1]),
        time_below=median(below[1]),
        turns=len(ratios),
        unit=unit,
        note=note,
        target=target,
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a whole."""

    name: str
    """What it is."""

    amount: float
    """How much, in the unit of the whole."""

    share: float
    """Its part of the sum of all parts, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """A whole by its parts."""

    name: str
    """What is taken apart."""

    parts: tuple[Part, ...]
    """The parts, the largest first."""

    total: float
    """Their sum."""

    unit: str
    """What the amounts are."""

    note: str = ""
    """What one should know to read it."""


def take_apart(name: str, amounts: dict[str, float], *, unit: str, note: str = "") -> Breakdown:
    """A whole by its parts, the largest first.

    Args:
        name: What is taken apart.
        amounts: How much each part is.
        unit: What the amounts are.
        note: What one should know to read it.
    """
    total = sum(amounts.values())
    ordered = sorted(amounts.items(), key=lambda item: -item[1])
    parts = tuple(
        Part(name=part, amount=amount, share=amount / total if total else 0.0)
        for part, amount in ordered
    )
    return Breakdown(name=name, parts=parts, total=total, unit=unit, note=note)


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """What could not be measured here."""

    name: str
    """What would have been measured."""

    reason: str
    """Why it was not, and what would help."""


Result = Ratio | Breakdown | Skipped
