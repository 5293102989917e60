"""The stability gap: what a task boundary does to what was known before it.

De Lange et al., "Continual evaluation for lifelong learning: identifying the stability gap"
(2023): at a boundary the accuracy on earlier tasks falls at once, and comes back, partly or
wholly, while the new task is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ocar.metrics.history import checked, checked_sizes

ROUNDING = 1e-12
"""Accuracies closer than this are the same: as many correct, added up in another way."""


class Gap(NamedTuple):
    """What happened after one boundary, until the next."""

    task: int
    """The task that began."""

    drop: float
    """Accuracy on the earlier tasks together just before it, less the lowest during it; at
    least 0."""

    evaluations: int
    """Evaluations from the boundary until the accuracy is where it was before, after its lowest;
    0 if it never fell. If it does not recover, all evaluations of the task."""

    recovered: bool
    """Whether it recovered before the next boundary."""


def stability_gaps(
    history: npt.ArrayLike, *, sizes: npt.ArrayLike | None = None, level: float = 1.0
) -> list[Gap]:
    """The gap at each boundary at which a task was evaluated before and after.

    Args:
        history: ``(evaluations, tasks)``.
        sizes: Samples of each task, ``(tasks,)``; equally many if not given.
        level: Part of the accuracy before the boundary at which it counts as recovered.

    Returns:
        One for each boundary, in order.
    """
    values, current = checked(history)
    weights = checked_sizes(sizes, values.shape[1])
    gaps = []
    for first in (np.flatnonzero(np.diff(current)) + 1).tolist():
        task = int(current[first])
        earlier = int(current[first - 1]) + 1
        share = weights[:earlier] / weights[:earlier].sum()
        before = float(values[first - 1, :earlier] @ share)
        during = values[current == task][:, :earlier] @ share
        lowest = int(np.flatnonzero(during <= during.min() + ROUNDING)[0])
        back = np.flatnonzero(during[lowest:] >= level * before - ROUNDING)
        recovered = len(back) > 0
        count = lowest + int(back[0]) + 1 if recovered else len(during)
        if recovered and back[0] == 0:  # even the lowest is no fall
            count = 0
        drop = max(0.0, before - float(during[lowest]))
        gaps.append(Gap(task=task, drop=drop, evaluations=count, recovered=recovered))
    return gaps


def mean_gap(gaps: Sequence[Gap]) -> float:
    """Mean drop over the boundaries; NaN without any."""
    return float(np.mean([gap.drop for gap in gaps])) if gaps else float("nan")


def mean_recovery(gaps: Sequence[Gap]) -> float:
    """Mean evaluations to recover over the boundaries; NaN without any.

    A task that does not recover counts with all its evaluations, so this is a lower bound then.
    """
    return float(np.mean([gap.evaluations for gap in gaps])) if gaps else float("nan")
