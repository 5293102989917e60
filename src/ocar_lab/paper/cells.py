"""One cell of a table: what the paper printed, what we measured, and how far apart they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ocar_lab.published import Published
from ocar_lab.runs import Spread

FAR = 2.0
"""Standard deviations beyond which a cell is marked."""

DEFINITION = (
    "(ours - paper) / sqrt(s_paper² + s_ours²), with means over seeds and sample standard "
    "deviations s; with one seed of ours, which has no spread, s_paper alone"
)
"""What the difference in standard deviations is."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A metric of a method, in per cent."""

    paper: Published | None
    """What the paper printed; None if nothing."""

    ours: Spread | None
    """What stored runs give; None if none has the metric."""

    @property
    def deviations(self) -> float | None:
        """The difference in standard deviations; None if there are no two numbers."""
        if self.paper is None or self.ours is None:
            return None
        return deviations(self.paper, self.ours)

    @property
    def paper_alone(self) -> bool:
        """Whether the difference is in the paper's standard deviations, for want of ours."""
        return self.deviations is not None and self.ours is not None and self.ours.std is None

    @property
    def far(self) -> bool:
        """Whether the two are more than two standard deviations apart."""
        return self.deviations is not None and abs(self.deviations) > FAR

    @property
    def missing(self) -> bool:
        """Whether the paper printed a number and we have none."""
        return self.paper is not None and self.ours is None


def deviations(paper: Published, ours: Spread) -> float:
    """How many standard deviations our mean is above the paper's.

    The difference of the means over √(s_paper² + s_ours²), the standard deviation of the
    difference of one run of each; over s_paper alone if we have one seed and so no spread.

    Args:
        paper: The printed number.
        ours: Ours, in the same unit.
    """
    return (ours.mean - paper.mean) / math.hypot(paper.std, ours.std or 0.0)


def per_cent(part: Spread) -> Spread:
    """A part of 1 in per cent."""
    std = None if part.std is None else 100 * part.std
    return Spread(mean=100 * part.mean, std=std, count=part.count)
