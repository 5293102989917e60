"""The evaluations of a run as arrays, and the metrics computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocar.events import Counts, Evaluated, Summary
from ocar.metrics.validation import NAMES, validation_metrics

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Counted = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """The evaluations of a run, one row each, in order: n rows, t tasks.

    A long stream has rows for some of them only, see :func:`ocar.evaluate.history.is_kept`.
    """

    index: Ints  #: Index of the batch before it, ``(n,)``.
    task: Ints  #: Task of that batch, ``(n,)``.
    seconds: Floats  #: Seconds of training since the stream began, ``(n,)``.
    correct: Counted  #: Correct predictions for each task, ``(n, t)``; 0 if not evaluated.
    sizes: Counted  #: Samples of each task, ``(n, t)``; 0 if not evaluated.
    tasks: Ints  #: Number of tasks evaluated, ``(n,)``.
    values: Mapping[str, Floats]
    """Other numbers by name, ``(n,)`` each, such as ``seen``, ``loss`` and ``tau``; NaN where a row
    has none."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def evaluations(self) -> int:
        """Evaluations of the run up to the last row; more than rows in a long stream."""
        return int(self.last("evaluations") or len(self))

    @property
    def has_counts(self) -> bool:
        """Whether predictions were counted, as in classification."""
        return self.correct.shape[1] > 0

    def last(self, name: str) -> float | None:
        """One of ``values`` in the last row; None if it has none."""
        number = float(self.values[name][-1]) if name in self.values else math.nan
        return None if math.isnan(number) else number

    def accuracies(self) -> Floats:
        """Accuracy on each task, ``(n, t)``, for :mod:`ocar.metrics`; NaN if not evaluated."""
        return _ratio(self.correct, self.sizes)

    def accuracy(self) -> Floats:
        """Accuracy on the samples of all tasks so far, ``(n,)``; NaN without samples."""
        return _ratio(self.correct.sum(axis=1), self.sizes.sum(axis=1))

    def accuracy_on(self, task: int) -> Floats:
        """Accuracy on one task, ``(n,)``; NaN until it is evaluated."""
        return _ratio(self.correct[:, task], self.sizes[:, task])

    def accuracy_up_to(self, task: int, rows: slice) -> Floats:
        """Accuracy on the samples of tasks 0 to ``task``, for some rows; NaN until it begins."""
        begun = self.tasks[rows] > task
        sizes = self.sizes[rows, : task + 1].sum(axis=1)
        return _ratio(self.correct[rows, : task + 1].sum(axis=1), np.where(begun, sizes, 0))

    def events(self) -> tuple[Evaluated, ...]:
        """The rows as events."""
        return tuple(map(self._event, range(len(self))))

    def _event(self, row: int) -> Evaluated:
        tasks = self.tasks[row]
        given = {name: float(column[row]) for name, column in self.values.items()}
        other = {name: None if math.isnan(number) else number for name, number in given.items()}
        online = other.get("online_correct")
        return Evaluated(
            correct=tuple(self.correct[row, :tasks].tolist()),
            sizes=tuple(self.sizes[row, :tasks].tolist()),
            index=int(self.index[row]),
            task=int(self.task[row]),
            seconds=float(self.seconds[row]),
            seen=int(other.get("seen") or 0),
            online_correct=None if online is None else int(online),
            l_p=other.get("l_p"),
            l_s=other.get("l_s"),
        )


def _ratio(correct: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> Floats:
    found: Floats = correct / np.where(sizes, sizes, math.nan)
    return found


def summary_of(columns: Columns, result: Mapping[str, Any] | None) -> Summary | None:
    """The metrics of a run, computed from its evaluations as :func:`ocar.evaluate.summarize` does.

    A long stream has rows for some evaluations only; then the metrics are those in the result. A
    run that is not finished has none.
    """
    if result is None or not len(columns):
        return None
    if "evaluations" in result:
        return read_summary(result["summary"])
    counts = Counts(correct=tuple(result["correct"]), sizes=tuple(result["sizes"]))
    on_validation: dict[str, float | None] = dict.fromkeys(NAMES)
    if columns.has_counts:
        on_validation = validation_metrics(columns.accuracies(), sizes=columns.sizes[-1])
    first = columns.seconds[columns.task == 0]
    online = columns.last("online_correct")
    return Summary(
        acc=None if math.isnan(counts.accuracy) else counts.accuracy,
        **on_validation,
        seconds=float(columns.seconds[-1]),
        probe=result.get("probe"),
        online_acc=None if online is None else online / (columns.last("seen") or math.nan),
        l_p=columns.last("l_p"),
        l_s=columns.last("l_s"),
        first_task_seconds=float(first[-1]) if len(first) else None,
    )


def read_summary(metrics: Mapping[str, Any]) -> Summary:
    """The metrics in a file.

    Raises:
        TypeError: A name is missing or unknown, or a value is no number.
        ValueError: A number is not finite.
    """
    for name, value in metrics.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
    return Summary(**metrics)
