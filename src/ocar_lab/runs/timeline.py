"""Numbers over time, over several seeds: aligned, averaged, and thinned.

Time is counted in tasks: 2.5 is the middle of the third. Seeds can have different numbers of
batches in a task; in this unit their boundaries coincide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ocar.errors import InputError
from ocar_lab.optional import needed
from ocar_lab.runs.columns import Columns, Floats, Ints
from ocar_lab.runs.reading import Run

STEPS = 50
"""Points of a curve for each task."""

NEAR = 1e-9
"""Times closer than this are the same."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """A number over time, over several seeds."""

    times: Floats  #: Ascending, ``(n,)``.
    mean: Floats  #: Over the seeds that have a number by then, ``(n,)``; NaN if none has.
    std: Floats  #: Sample standard deviation (ddof 1) over them, ``(n,)``; NaN for fewer than two.
    count: Ints  #: Number of these seeds, ``(n,)``.


def task_lengths(runs: Sequence[Run]) -> dict[int, int]:
    """Batches of each task that some run has completed; the most of several."""
    lengths: dict[int, int] = {}
    for run in runs:
        for task, length, complete in _lengths(run.columns, finished=run.result is not None):
            if complete:
                lengths[task] = max(length, lengths.get(task, 0))
    return lengths


def _lengths(columns: Columns, *, finished: bool) -> list[tuple[int, int, bool]]:
    """For each task: its number, the batches up to its last evaluation, whether it is complete."""
    last = np.flatnonzero(np.diff(columns.task, append=-1))
    lengths = np.diff(columns.index[last], prepend=-1)
    complete = [True] * (len(last) - 1) + [finished]
    return list(zip(columns.task[last].tolist(), lengths.tolist(), complete, strict=False))


def times_in_tasks(
    columns: Columns, *, finished: bool = True, lengths: Mapping[int, int] | None = None
) -> Floats:
    """The time of each evaluation, ``(n,)``: after batch j of m in task t it is t + j/m.

    The last task of a run that is not finished has as many batches as ``lengths`` says; without a
    number of its own, as many as the longest.
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


def last_measured(grid: Floats, times: Floats, values: Floats) -> Floats:
    """The number measured last at each time of a grid, ``(n,)``; before the first one, the first.

    The times, ascending, and the values are ``(m,)``, m ≥ 1.
    """
    index = np.searchsorted(times, grid + NEAR, side="right") - 1
    return np.asarray(values[np.maximum(index, 0)])


def sampled(
    label: str, runs: Sequence[Columns], number: Callable[[Columns], Floats], *, tasks: int
) -> tuple[Floats, Floats]:
    """``STEPS`` times a task, ``(n,)``, and a number of each run measured last then, ``(runs, n)``.

    A run of one task is stretched over all ``tasks``. The label is for errors.

    Raises:
        InputError: A run has no evaluation.
    """
    if not runs or not all(map(len, runs)):
        raise InputError(f"There is nothing to draw of {label}: a run has no evaluation.")
    grid = np.linspace(0, tasks, tasks * STEPS + 1)[1:]
    times = [times_in_tasks(run) * (tasks if run.task[-1] == 0 else 1) for run in runs]
    pairs = zip(times, map(number, runs), strict=True)
    return grid, np.stack([last_measured(grid, *pair) for pair in pairs])


def band(times: Sequence[Floats], values: Sequence[Floats]) -> Band:
    """A number over time: at each time and for each seed, the number measured last.

    The times are those of the seed that has got furthest. A seed counts from its first number to
    its last evaluation; its times ascend, and a value is NaN where there is none.
    """
    grid = max(times, key=lambda own: (own[-1] if len(own) else -1.0, len(own)))
    stacked = np.stack([_on_grid(grid, *pair) for pair in zip(times, values, strict=True)])
    there = ~np.isnan(stacked)
    count = there.sum(axis=0)
    mean = np.where(there, stacked, 0).sum(axis=0) / np.where(count, count, math.nan)
    squares = np.where(there, (stacked - mean) ** 2, 0).sum(axis=0)
    std = np.sqrt(squares / np.where(count > 1, count - 1, math.nan))
    return Band(times=grid, mean=mean, std=std, count=count)


def _on_grid(grid: Floats, times: Floats, values: Floats) -> Floats:
    """The number measured last at each time; NaN before the first number and after the end."""
    there = ~np.isnan(values)
    if not there.any():
        return np.full(len(grid), np.nan)
    inside = (grid >= times[there][0] - NEAR) & (grid <= times[-1] + NEAR)
    return np.where(inside, last_measured(grid, times[there], values[there]), np.nan)


def thin(times: Floats, values: Floats, most: int) -> npt.NDArray[np.intp]:
    """The points of a long curve that are worth drawing.

    Each task is cut into equal stretches. The lowest and the highest point of each stretch stay,
    and the first and the last of each task, so that a drop at a boundary stays visible.

    Args:
        times: Times in tasks, ascending, ``(n,)``.
        values: The curve, ``(n,)``.
        most: Number of points to keep, or 4 a task if that is more.

    Returns:
        Indices of these points, ascending; none where the curve is NaN.
    """
    there = np.flatnonzero(~np.isnan(values))
    if len(there) <= most:
        return there
    # A time belongs to the task that it ends: 2.0 to the second.
    task = np.ceil(times[there] - NEAR).astype(np.int64)
    stretches = max(1, (most // len(np.unique(task)) - 2) // 2)
    within = np.minimum((times[there] - task + 1) * stretches, stretches - NEAR)
    stretch = task * stretches + np.maximum(within, 0).astype(np.int64)
    order = np.lexsort((values[there], stretch))  # the lowest of each stretch first
    first, last = _ends(stretch)
    kept = np.unique(np.concatenate([order[first], order[last], *_ends(task)]))
    return there[kept]


def _ends(groups: Ints) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """First and last place of each group of equal neighbours."""
    first = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    return first, np.append(first[1:], len(groups)) - 1


def per_stretch(
    times: Floats, values: Floats, *, each: int, count: int, how: Literal["mean", "median"]
) -> Floats:
    """Mean or median over each stretch of time, ``(count,)``; NaN where there is no number.

    Times in tasks and values are ``(n,)``; a task has ``each`` stretches.
    """
    with needed("A report", "polars", extra="cli"):
        import polars as pl
    stretch = np.maximum(np.ceil(times * each - NEAR * each).astype(np.int64) - 1, 0)
    numbers = pl.DataFrame({"stretch": stretch, "value": values}).filter(~np.isnan(values))
    value = pl.col("value")
    found = numbers.group_by("stretch").agg(value.mean() if how == "mean" else value.median())
    result = np.full(count, np.nan)
    result[found["stretch"].to_numpy()] = found["value"].to_numpy()
    return result
