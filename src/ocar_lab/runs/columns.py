"""The evaluations of a run as arrays, and its metrics computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ocar.events import Evaluated, Summary
from ocar.metrics.validation import NAMES, validation_metrics
from ocar_lab.runs.records import read_counts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@runtime_checkable
class HasLast(Protocol):
    """Values that can tell the last row without reading all."""

    @property
    def last(self) -> Mapping[str, Any]:
        """The numbers of the last row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """Every evaluation of a run, one row each, in order: n rows, t tasks.

    Of a long stream those that were written down, see :func:`ocar.evaluate.history.is_kept`.
    """

    index: Ints
    """Index of the batch before it, ``(n,)``."""

    task: Ints
    """Task of that batch, ``(n,)``."""

    seconds: Floats
    """Seconds of training since the stream began, ``(n,)``."""

    correct: npt.NDArray[np.int32]
    """Correct predictions for each task, ``(n, t)``; 0 for tasks that were not evaluated."""

    kinds: tuple[tuple[int, ...], ...]
    """The different samples of each task that were evaluated on: most often one a task."""

    kind: Ints
    """Which of these an evaluation was made on, ``(n,)``."""

    values: Mapping[str, Floats]
    """All other numbers by name, ``(n,)`` each, such as ``seen``, ``loss`` and ``tau``; NaN where
    there is none."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def evaluations(self) -> int:
        """Evaluations of the run up to the last row; more than rows where not each has one."""
        return int(self.value("evaluations", -1) or len(self)) if len(self) else 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each task at the last evaluation; empty where none were counted."""
        return self.kinds[self.kind[-1]] if len(self) else ()

    def accuracies(self) -> Floats:
        """A history as :mod:`ocar.metrics` has it: ``(n, t)``, NaN for tasks not evaluated."""
        table = np.full((len(self.kinds), self.correct.shape[1]), np.nan)
        for row, sizes in zip(table, self.kinds, strict=True):
            row[: len(sizes)] = [size or math.nan for size in sizes]
        found: Floats = self.correct / table[self.kind]
        return found

    def accuracy(self) -> Floats:
        """Accuracy on all tasks so far together, ``(n,)``; NaN without samples."""
        totals = np.array([sum(sizes) or math.nan for sizes in self.kinds], dtype=np.float64)
        found: Floats = self.correct.sum(axis=1) / totals[self.kind]
        return found

    def accuracy_on(self, task: int) -> Floats:
        """Accuracy on one task, ``(n,)``; NaN until it is evaluated."""
        sizes = [kind[task] if task < len(kind) else 0 for kind in self.kinds]
        found: Floats = self.correct[:, task] / np.array([n or math.nan for n in sizes])[self.kind]
        return found

    def accuracy_up_to(self, task: int, rows: slice) -> Floats:
        """Accuracy on a task and those before it together, for some rows; NaN until it begins."""
        known = [sum(kind[: task + 1]) if task < len(kind) else 0 for kind in self.kinds]
        sizes = np.array([n or math.nan for n in known])[self.kind[rows]]
        found: Floats = self.correct[rows, : task + 1].sum(axis=1) / sizes
        return found

    def event(self, row: int) -> Evaluated:
        """One row as an event."""
        sizes = self.kinds[self.kind[row]]
        online = self.value("online_correct", row)
        return Evaluated(
            correct=tuple(self.correct[row, : len(sizes)].tolist()),
            sizes=sizes,
            index=int(self.index[row]),
            task=int(self.task[row]),
            seconds=float(self.seconds[row]),
            seen=int(self.value("seen", row) or 0),
            online_correct=None if online is None else int(online),
            l_p=self.value("l_p", row),
            l_s=self.value("l_s", row),
        )

    def events(self) -> tuple[Evaluated, ...]:
        """All rows as events."""
        return tuple(map(self.event, range(len(self))))

    def value(self, name: str, row: int) -> float | None:
        """One of the other numbers in a row; None if there is none."""
        if row == -1 and isinstance(self.values, HasLast):
            return self.values.last.get(name)
        if name not in self.values:
            return None
        number = float(self.values[name][row])
        return None if math.isnan(number) else number


def summary_of(columns: Columns, result: Mapping[str, Any] | None) -> Summary | None:
    """The metrics of a run, computed anew as :func:`ocar.evaluate.summarize` does.

    Where not every evaluation has a row, they are those that the run computed from all of them.

    Args:
        columns: Its evaluations.
        result: The record of its result; None if it is not finished.

    Returns:
        None if the run is not finished.
    """
    if result is None or not len(columns):
        return None
    if "evaluations" in result:
        return _said(result["summary"])
    first = columns.seconds[columns.task == 0]
    online = columns.value("online_correct", -1)
    return Summary(
        acc=_defined(read_counts(result).accuracy),
        **_on_validation(columns),
        seconds=float(columns.seconds[-1]),
        probe=result.get("probe"),
        online_acc=None if online is None else online / (columns.value("seen", -1) or math.nan),
        l_p=columns.value("l_p", -1),
        l_s=columns.value("l_s", -1),
        first_task_seconds=float(first[-1]) if len(first) else None,
    )


def _said(summary: Mapping[str, Any]) -> Summary:
    for name, value in summary.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
    return Summary(**summary)


def _on_validation(columns: Columns) -> dict[str, float | None]:
    if not columns.sizes:
        return dict.fromkeys(NAMES)
    return validation_metrics(columns.accuracies(), sizes=columns.sizes)


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
