"""Numbers over time, over several seeds: aligned, averaged, and thinned.

Time is counted in tasks: 2.5 is the middle of the third. Tasks of different seeds can have
different numbers of batches, and this way their boundaries fall together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocar_lab.runs import Run
from ocar_lab.runs.columns import Columns, Floats, Ints

NEAR = 1e-9
"""Moments closer than this are the same."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """A number over time, over several seeds."""

    times: Floats
    """Moments, ``(n,)``, rising."""

    mean: Floats
    """Mean over the seeds that have got so far, ``(n,)``; NaN where there is none."""

    std: Floats
    """Sample standard deviation (ddof 1) over these, ``(n,)``; NaN where there are less than 2."""

    count: Ints
    """How many these are, ``(n,)``."""


def task_lengths(runs: Sequence[Run]) -> dict[int, int]:
    """Batches of each task, where some run has come to its end; of several the most.

    Args:
        runs: Runs through streams of the same tasks.
    """
    lengths: dict[int, int] = {}
    for run in runs:
        for task, length, complete in _lengths(run.columns, finished=run.result is not None):
            if complete:
                lengths[task] = max(length, lengths.get(task, 0))
    return lengths


def _lengths(columns: Columns, *, finished: bool) -> list[tuple[int, int, bool]]:
    """Of each task the batches up to its last evaluation, and whether that is all of it."""
    last = np.flatnonzero(np.diff(columns.task, append=-1))
    lengths = np.diff(columns.index[last], prepend=-1)
    complete = [True] * (len(last) - 1) + [finished]
    return list(zip(columns.task[last].tolist(), lengths.tolist(), complete, strict=False))


def times_in_tasks(
    columns: Columns, *, finished: bool = True, lengths: Mapping[int, int] | None = None
) -> Floats:
    """When each evaluation was made, ``(evaluations,)``: after batch j of m in task t at t + j/m.

    Args:
        columns: The evaluations of a run.
        finished: Whether its last task is complete.
        lengths: Batches of each task, for one that is not complete; of a task that nobody has
            completed they are taken to be as many as of the longest that somebody has.
    """
    known = lengths or {}
    times = np.empty(len(columns))
    begin = -1
    for task, length, complete in _lengths(columns, finished=finished):
        if not complete:
            length = max(length, known.get(task, max(known.values(), default=0)))
        members = columns.task == task
        times[members] = task + (columns.index[members] - begin) / length
        begin = int(columns.index[members][-1])
    return times


def band(times: Sequence[Floats], values: Sequence[Floats]) -> Band:
    """A number over time: at each moment, of each seed, what was measured last.

    The moments are those of the seed that has got furthest. A seed counts from its first number
    to its last evaluation.

    Args:
        times: When each seed was measured, rising.
        values: The number then; NaN where there is none.
    """
    grid = max(times, key=lambda own: (own[-1] if len(own) else -1.0, len(own)))
    stacked = np.stack([_at(grid, *pair) for pair in zip(times, values, strict=True)])
    there = ~np.isnan(stacked)
    count = there.sum(axis=0)
    mean, std = np.full(len(grid), np.nan), np.full(len(grid), np.nan)
    some = slice(int((count > 0).argmax()), None)  # before it nobody has anything
    told, own, n = there[:, some], stacked[:, some], count[some]
    mean[some] = np.where(told, own, 0).sum(axis=0) / np.where(n, n, math.nan)
    squares = np.where(told, (own - mean[some]) ** 2, 0).sum(axis=0)
    std[some] = np.sqrt(squares / np.where(n > 1, n - 1, math.nan))
    return Band(times=grid, mean=mean, std=std, count=count)


def _at(grid: Floats, times: Floats, values: Floats) -> Floats:
    """What was measured last at each moment; NaN before the first number and after the end."""
    there = ~np.isnan(values)
    if not there.any():
        return np.full(len(grid), np.nan)
    if there[there.argmax() :].all() and np.array_equal(times, grid):
        return values
    index = np.searchsorted(times[there], grid + NEAR, side="right") - 1
    inside = (index >= 0) & (grid <= times[-1] + NEAR)
    return np.where(inside, values[there][index], np.nan)


def thin(times: Floats, values: Floats, most: int) -> npt.NDArray[np.intp]:
    """Which points to draw of a long curve: those between which nothing is seen.

    Each task is cut into equal stretches. The lowest and the highest point of each stretch stay,
    and the first and the last of each task; so whatever falls at a boundary is still there.

    Args:
        times: Moments in tasks, ``(n,)``, rising.
        values: The curve, ``(n,)``.
        most: How many points to keep, or 4 a task where that is more; as few as there are stay.

    Returns:
        Indices of the points that stay, rising; none where the curve has no number.
    """
    there = np.flatnonzero(~np.isnan(values))
    if len(there) <= most:
        return there
    # A moment belongs to the task that it ends: 2.0 to the second.
    task = np.ceil(times[there] - NEAR).astype(np.int64)
    tasks = len(np.unique(task))
    stretches = max(1, (most // tasks - 2) // 2)
    within = np.minimum((times[there] - task + 1) * stretches, stretches - NEAR)
    stretch = task * stretches + np.maximum(within, 0).astype(np.int64)
    chosen = np.zeros(len(there), dtype=np.bool_)
    for extreme in (np.minimum, np.maximum):
        chosen[_where(extreme, values[there], stretch)] = True
    for end in _ends(task):
        chosen[end] = True
    return there[chosen]


def _where(extreme: np.ufunc, values: Floats, groups: Ints) -> npt.NDArray[np.intp]:
    """Where each group of equal neighbours has its lowest or highest value, the first of equals."""
    first, last = _ends(groups)
    found = np.repeat(extreme.reduceat(values, first), last - first + 1)
    places = np.flatnonzero(values == found)
    return places[_ends(groups[places])[0]]


def _ends(groups: Ints) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """First and last place of each group of equal neighbours."""
    first = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    return first, np.append(first[1:], len(groups)) - 1


def stretches_of(times: Floats, each: int) -> Ints:
    """Which stretch of time a moment belongs to, ``(n,)``, from 0; ``each`` a task."""
    return np.maximum(np.ceil(times * each - NEAR * each).astype(np.int64) - 1, 0)


def stretch_medians(times: Floats, values: Floats, *, each: int, count: int) -> Floats:
    """Median over each stretch of time, ``(count,)``; NaN where there is no number.

    Args:
        times: Moments in tasks, ``(n,)``, rising.
        values: The numbers, ``(n,)``; NaN is left out.
        each: Stretches a task.
        count: Stretches in all.
    """
    there = ~np.isnan(values)
    stretch, numbers = stretches_of(times[there], each), values[there]
    medians = np.full(count, np.nan)
    if len(stretch):
        order = np.lexsort((numbers, stretch))
        first, last = _ends(stretch[order])
        middle = first + last
        low, high = order[middle // 2], order[(middle + 1) // 2]
        medians[stretch[order][first]] = (numbers[low] + numbers[high]) / 2
    return medians


def stretch_means(times: Floats, values: Floats, *, each: int, count: int) -> Floats:
    """Mean over each stretch of time, ``(count,)``; see :func:`stretch_medians`."""
    there = ~np.isnan(values)
    stretch = stretches_of(times[there], each)
    sums = np.bincount(stretch, weights=values[there], minlength=count)
    counts = np.bincount(stretch, minlength=count)
    means: Floats = sums / np.where(counts, counts, math.nan)
    return means
