"""The evaluations of a run as arrays, and its metrics computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocar import metrics
from ocar.events import Evaluated, Summary
from ocar.runs.records import read_counts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """Every evaluation of a run, one row each, in order: n rows, t tasks."""

    index: Ints
    """Index of the batch before it, ``(n,)``."""

    task: Ints
    """Task of that batch, ``(n,)``."""

    seconds: Floats
    """Seconds of training since the stream began, ``(n,)``."""

    seen: Ints
    """Samples that the stream has given so far, ``(n,)``."""

    correct: npt.NDArray[np.int32]
    """Correct predictions for each task, ``(n, t)``; 0 for tasks that were not evaluated."""

    kinds: tuple[tuple[int, ...], ...]
    """The different samples of each task that were evaluated on: most often one a task."""

    kind: Ints
    """Which of these an evaluation was made on, ``(n,)``."""

    values: Mapping[str, Floats]
    """All other numbers by name, ``(n,)`` each, such as ``l_p``, ``loss`` and ``tau``; NaN where
    there is none."""

    def __len__(self) -> int:
        return len(self.index)

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

    def event(self, row: int) -> Evaluated:
        """One row as an event."""
        sizes = self.kinds[self.kind[row]]
        online, l_p, l_s = (self._value(name, row) for name in ("online_correct", "l_p", "l_s"))
        return Evaluated(
            correct=tuple(self.correct[row, : len(sizes)].tolist()),
            sizes=sizes,
            index=int(self.index[row]),
            task=int(self.task[row]),
            seconds=float(self.seconds[row]),
            seen=int(self.seen[row]),
            online_correct=None if online is None else int(online),
            l_p=l_p,
            l_s=l_s,
        )

    def events(self) -> tuple[Evaluated, ...]:
        """All rows as events."""
        return tuple(map(self.event, range(len(self))))

    def _value(self, name: str, row: int) -> float | None:
        values = self.values.get(name)
        return None if values is None or math.isnan(values[row]) else float(values[row])


def summary_of(columns: Columns, result: Mapping[str, Any] | None) -> Summary | None:
    """The metrics of a run, computed anew as :func:`ocar.evaluate.summarize` does.

    Args:
        columns: Its evaluations.
        result: The record of its result; None if it is not finished.

    Returns:
        None if the run is not finished.
    """
    if result is None or not len(columns):
        return None
    test: Counts = read_counts(result)
    last = columns.event(-1)
    first = columns.seconds[columns.task == 0]
    return Summary(
        acc=_defined(test.accuracy),
        **_on_validation(columns),
        seconds=last.seconds,
        probe=result.get("probe"),
        online_acc=None if last.online_correct is None else last.online_correct / last.seen,
        l_p=last.l_p,
        l_s=last.l_s,
        first_task_seconds=float(first[-1]) if len(first) else None,
    )


def _on_validation(columns: Columns) -> dict[str, float | None]:
    names = ("aaa", "wc_acc", "forgetting", "forgetting_mean", "plasticity")
    names = (*names, "stability_gap", "recovery")
    if not columns.sizes:
        return dict.fromkeys(names)
    history, sizes = columns.accuracies(), columns.sizes
    gaps = metrics.stability_gaps(history, sizes=sizes)
    values = (
        metrics.average_anytime_accuracy(history, sizes=sizes),
        metrics.worst_case_accuracy(history),
        metrics.first_task_forgetting(history),
        metrics.mean_forgetting(history),
        metrics.last_task_accuracy(history),
        metrics.mean_gap(gaps),
        metrics.mean_recovery(gaps),
    )
    return dict(zip(names, map(_defined, values), strict=True))


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
