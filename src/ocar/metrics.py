"""What is measured over a stream, as pure functions of per-task accuracies over time.

A history is an array ``(evaluations, tasks)`` in time order. Its entry ``[n, i]`` is the accuracy
on task ``i`` at evaluation ``n``, NaN as long as the task has not begun; so the first entries of a
row are numbers, and their count says which task was current. Tasks begin in order and none
is skipped. Accuracies are in 0..1.
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
    _, current = _checked(history)
    return current


def accuracy(accuracies: npt.ArrayLike, *, sizes: npt.ArrayLike | None = None) -> float:
    """Accuracy on the data of several tasks together.

    Args:
        accuracies: Accuracy on each task, ``(tasks,)``.
        sizes: Samples of each task, ``(tasks,)``; equally many if not given.
    """
    return average_anytime_accuracy(np.atleast_2d(accuracies), sizes=sizes)


def anytime_accuracy(history: npt.ArrayLike, *, sizes: npt.ArrayLike | None = None) -> Floats:
    """Accuracy, at each evaluation, on the data of all tasks up to the current one together.

    Args:
        history: ``(evaluations, tasks)``.
        sizes: Samples of each task, ``(tasks,)``; equally many if not given.

    Returns:
        ``(evaluations,)``.
    """
    values, _ = _checked(history)
    weights = np.ones(values.shape[1]) if sizes is None else np.asarray(sizes, dtype=np.float64)
    if weights.shape != values.shape[1:] or not (weights > 0).all():
        raise InputError(
            f"Invalid sizes={weights.tolist()}. Must be {values.shape[1]} positive numbers."
        )
    seen = np.where(np.isnan(values), 0.0, weights)
    pooled: Floats = (np.nan_to_num(values) * seen).sum(axis=1) / seen.sum(axis=1)
    return pooled


def average_anytime_accuracy(
    history: npt.ArrayLike, *, sizes: npt.ArrayLike | None = None
) -> float:
    """AAA: the mean over time of :func:`anytime_accuracy`."""
    return float(anytime_accuracy(history, sizes=sizes).mean())


def worst_case_accuracy(history: npt.ArrayLike) -> float:
    """WC-Acc at the end: how the last task is known, and how badly the others ever were.

    With k tasks it is ``A_k / k + (1 − 1/k) · mean over i < k of min A_i``, the minimum over the
    evaluations since task i ended, that is, made during a later task.

    Args:
        history: ``(evaluations, tasks)``.
    """
    values, current = _checked(history)
    tasks: int = values.shape[1]
    last = float(values[-1, -1])
    if tasks == 1:
        return last
    lowest = [float(values[current > task, task].min()) for task in range(tasks - 1)]
    return last / tasks + (1 - 1 / tasks) * (sum(lowest) / len(lowest))


def first_task_forgetting(history: npt.ArrayLike) -> float:
    """Accuracy on the first task at the last evaluation of that task, less that at the end.

    Args:
        history: ``(evaluations, tasks)``.
    """
    values, current = _checked(history)
    learned = np.flatnonzero(current == current[0])[-1]
    return float(values[learned, 0] - values[-1, 0])


def last_task_accuracy(history: npt.ArrayLike) -> float:
    """Plasticity: accuracy at the end on the task that came last.

    Args:
        history: ``(evaluations, tasks)``.
    """
    values, _ = _checked(history)
    return float(values[-1, -1])


def _checked(history: npt.ArrayLike) -> tuple[Floats, npt.NDArray[np.intp]]:
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
