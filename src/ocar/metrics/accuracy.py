"""Accuracy over time and at the end: functions of a history.

A history is an array ``(evaluations, tasks)`` in time order. Its entry ``[n, i]`` is the accuracy
on task ``i`` at evaluation ``n``, in 0..1, and NaN before the task has begun. Tasks begin in order,
so the numbers come first in a row, and their count says which task was current. A task may begin
and end between two evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ocar.errors import InputError

Floats = npt.NDArray[np.float64]


def history_array(rows: Sequence[Sequence[float]]) -> Floats:
    """A history from rows that each hold the accuracies of the tasks begun so far."""
    tasks = max((len(row) for row in rows), default=0)
    history = np.full((len(rows), tasks), np.nan)
    for into, row in zip(history, rows, strict=True):
        into[: len(row)] = row
    return history


def anytime_accuracy(history: npt.ArrayLike, *, sizes: npt.ArrayLike | None = None) -> Floats:
    """Accuracy, at each evaluation, on the data of all tasks up to the current one together.

    ``sizes`` are the samples of each task, ``(tasks,)``; equally many by default.
    """
    values, _ = checked(history)
    weights = checked_sizes(sizes, values.shape[1])
    seen = np.where(np.isnan(values), 0.0, weights)
    pooled: Floats = (np.nan_to_num(values) * seen).sum(axis=1) / seen.sum(axis=1)
    return pooled


def average_anytime_accuracy(
    history: npt.ArrayLike, *, sizes: npt.ArrayLike | None = None
) -> float:
    """AAA: the mean over time of :func:`anytime_accuracy`."""
    return float(anytime_accuracy(history, sizes=sizes).mean())


def worst_case_accuracy(history: npt.ArrayLike) -> float:
    """WC-Acc at the end: accuracy on the last task, and the lowest ever on the others.

    With k tasks it is ``A_k / k + (1 − 1/k) · mean over i < k of min A_i``, where the minimum is
    over the evaluations after task i ended, that is, during a later task.
    """
    values, current = checked(history)
    tasks: int = values.shape[1]
    last = float(values[-1, -1])
    if tasks == 1:
        return last
    lowest = [float(values[current > task, task].min()) for task in range(tasks - 1)]
    return last / tasks + (1 - 1 / tasks) * (sum(lowest) / len(lowest))


def task_forgetting(history: npt.ArrayLike) -> Floats:
    """Accuracy lost on each task since it ended, ``(tasks,)``; 0 for the last task.

    A task ends with the last evaluation at which it was current. A task that began and ended
    between two evaluations counts from the first evaluation after it.
    """
    values, current = checked(history)
    tasks = np.arange(values.shape[1])
    # For each task, the last evaluation before any later task began.
    ended = np.searchsorted(current, tasks, side="right") - 1
    skipped = current[np.maximum(ended, 0)] != tasks
    ended = np.where(skipped, ended + 1, ended)
    forgotten: Floats = values[ended, tasks] - values[-1]
    return forgotten


def first_task_forgetting(history: npt.ArrayLike) -> float:
    """Accuracy lost on the first task since it ended."""
    return float(task_forgetting(history)[0])


def mean_forgetting(history: npt.ArrayLike) -> float:
    """Mean of :func:`task_forgetting` over all tasks but the last; NaN for one task."""
    earlier = task_forgetting(history)[:-1]
    return float(earlier.mean()) if len(earlier) else float("nan")


def last_task_accuracy(history: npt.ArrayLike) -> float:
    """Plasticity: accuracy on the last task at the end."""
    values, _ = checked(history)
    return float(values[-1, -1])


def checked(history: npt.ArrayLike) -> tuple[Floats, npt.NDArray[np.intp]]:
    """The history as an array and the current task of each row; else an ``InputError``."""
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
            "Leave out tasks that have not."
        )
    if ((values < 0) | (values > 1)).any():
        raise InputError(
            f"Invalid accuracies from {np.nanmin(values)} to {np.nanmax(values)}. Must be in 0..1."
        )
    return values, counts - 1


def checked_sizes(sizes: npt.ArrayLike | None, tasks: int) -> Floats:
    """Samples of each task, ``(tasks,)``; equally many by default."""
    weights = np.ones(tasks) if sizes is None else np.asarray(sizes, dtype=np.float64)
    if weights.shape != (tasks,) or not (weights > 0).all():
        raise InputError(f"Invalid sizes={weights.tolist()}. Must be {tasks} positive numbers.")
    return weights
