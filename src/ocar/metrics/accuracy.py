"""How well a learner does, over time and at the end: functions of a history of accuracies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ocar.metrics.history import Floats, checked, checked_sizes


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
    """WC-Acc at the end: how the last task is known, and how badly the others ever were.

    With k tasks it is ``A_k / k + (1 − 1/k) · mean over i < k of min A_i``, the minimum over the
    evaluations since task i ended, that is, made during a later task.

    Args:
        history: ``(evaluations, tasks)``.
    """
    values, current = checked(history)
    tasks: int = values.shape[1]
    last = float(values[-1, -1])
    if tasks == 1:
        return last
    lowest = [float(values[current > task, task].min()) for task in range(tasks - 1)]
    return last / tasks + (1 - 1 / tasks) * (sum(lowest) / len(lowest))


def task_forgetting(history: npt.ArrayLike) -> Floats:
    """Accuracy lost on each task since it ended.

    A task has ended with the last evaluation at which it was current; one that began and ended
    between two evaluations counts from the first one after it.

    Args:
        history: ``(evaluations, tasks)``.

    Returns:
        ``(tasks,)``; of the last task it is 0.
    """
    values, current = checked(history)
    tasks = np.arange(values.shape[1])
    # Of each task, the last evaluation at which nothing later had begun.
    ended = np.searchsorted(current, tasks, side="right") - 1
    skipped = current[np.maximum(ended, 0)] != tasks
    ended = np.where(skipped, ended + 1, ended)
    forgotten: Floats = values[ended, tasks] - values[-1]
    return forgotten


def first_task_forgetting(history: npt.ArrayLike) -> float:
    """Accuracy on the first task at the last evaluation of that task, less that at the end.

    Args:
        history: ``(evaluations, tasks)``.
    """
    return float(task_forgetting(history)[0])


def mean_forgetting(history: npt.ArrayLike) -> float:
    """Mean of :func:`task_forgetting` over all tasks but the last; NaN if there is one only.

    Args:
        history: ``(evaluations, tasks)``.
    """
    earlier = task_forgetting(history)[:-1]
    return float(earlier.mean()) if len(earlier) else float("nan")


def last_task_accuracy(history: npt.ArrayLike) -> float:
    """Plasticity: accuracy at the end on the task that came last.

    Args:
        history: ``(evaluations, tasks)``.
    """
    values, _ = checked(history)
    return float(values[-1, -1])
