"""The stability gap: how far a task boundary lowers the accuracy on earlier tasks.

De Lange et al., "Continual evaluation for lifelong learning: identifying the stability gap"
(2023): at a boundary the accuracy on earlier tasks falls at once, and recovers, partly or wholly,
while the new task is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ocar.metrics.accuracy import checked, checked_sizes

ROUNDING = 1e-12
"""Accuracies closer than this are equal: the same count, added up in another order."""


class Gap(NamedTuple):
    """What happened between one boundary and the next."""

    task: int  #: The task that began.
    #: Accuracy on the earlier tasks just before it, minus the lowest during it; at least 0.
    drop: float
    #: Evaluations from the boundary until the accuracy has recovered after its lowest; 0 if it
    #: never fell, all evaluations of the task if it does not recover.
    evaluations: int
    recovered: bool  #: Whether it recovered before the next boundary.


def stability_gaps(history: npt.ArrayLike, *, sizes: npt.ArrayLike | None = None) -> list[Gap]:
    """The gap at each boundary with an evaluation before and after it, in order.

    ``sizes`` are the samples of each task, ``(tasks,)``; equally many by default.
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
        back = np.flatnonzero(during[lowest:] >= before - ROUNDING)
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

    If a task does not recover it counts with all its evaluations, so this is a lower bound.
    """
    return float(np.mean([gap.evaluations for gap in gaps])) if gaps else float("nan")


def share_recovered(gaps: Sequence[Gap]) -> float:
    """Share of the boundaries after which the accuracy recovered; NaN without any."""
    return float(np.mean([gap.recovered for gap in gaps])) if gaps else float("nan")
