"""Accuracy over time, of each task.

A history is an array ``(evaluations, tasks)`` in time order. Its entry ``[n, i]`` is the accuracy
on task ``i`` at evaluation ``n``, NaN as long as the task has not begun; so the first entries of a
row are numbers, and their count says which task was current. Tasks begin in order; one may begin
and end between two evaluations. Accuracies are in 0..1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ocar.errors import InputError

Floats = npt.NDArray[np.float64]


def history_array(rows: Sequence[Sequence[float]]) -> Floats:
    """A history from rows that each hold the tasks begun so far.

    Args:
        rows: For each evaluation, the accuracy of each task up to the current one.

    Returns:
        ``(len(rows), tasks)``, with NaN where a row is shorter than the last one.
    """
    tasks = max((len(row) for row in rows), default=0)
    history = np.full((len(rows), tasks), np.nan)
    for into, row in zip(history, rows, strict=True):
        into[: len(row)] = row
    return history


def current_tasks(history: npt.ArrayLike) -> npt.NDArray[np.intp]:
    """Which task was being learned at each evaluation, ``(evaluations,)``, from 0."""
    _, current = checked(history)
    return current


def task_accuracy(history: npt.ArrayLike, task: int) -> tuple[npt.NDArray[np.intp], Floats]:
    """The accuracy on one task over time, from its first evaluation on.

    Args:
        history: ``(evaluations, tasks)``.
        task: Which task, from 0.

    Returns:
        The evaluations at which it was measured and the accuracies, ``(n,)`` each.
    """
    values, current = checked(history)
    if not 0 <= task < values.shape[1]:
        raise InputError(f"Invalid {task=}. Must be in 0..{values.shape[1] - 1}.")
    begun = np.flatnonzero(current >= task)
    return begun, values[begun, task]


def checked(history: npt.ArrayLike) -> tuple[Floats, npt.NDArray[np.intp]]:
    """The history as an array and the current task of each row, or an error."""
    values = np.asarray(history, dtype=np.float64)
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(
            f"Invalid history of shape {values.shape}. Must be (evaluations, tasks), not empty."
        )
    seen = ~np.isnan(values)
    counts = seen.sum(axis=1)
    in_order = seen == (np.arange(values.shape[1]) < counts[:, None])
    if not in_order.all() or (np.diff(counts) < 0).any() or counts[0] < 1:
        raise InputError(
            "Invalid history. Each row must hold the tasks begun so far, then NaN, and no task "
            "may be lost from one row to the next."
        )
    if counts[-1] < values.shape[1]:
        raise InputError(
            f"Invalid history of {values.shape[1]} tasks, {counts[-1]} of which have begun. "
            "Leave out those that have not."
        )
    if ((values < 0) | (values > 1)).any():
        raise InputError(
            f"Invalid accuracies from {np.nanmin(values)} to {np.nanmax(values)}. Must be in 0..1."
        )
    return values, counts - 1


def checked_sizes(sizes: npt.ArrayLike | None, tasks: int) -> Floats:
    """Samples of each task, ``(tasks,)``; equally many if not given."""
    weights = np.ones(tasks) if sizes is None else np.asarray(sizes, dtype=np.float64)
    if weights.shape != (tasks,) or not (weights > 0).all():
        raise InputError(f"Invalid sizes={weights.tolist()}. Must be {tasks} positive numbers.")
    return weights
