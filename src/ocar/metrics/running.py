"""Metrics of a run in progress: ``update`` adds an evaluation, ``compute`` gives the value so far.

At the end they equal the functions of a whole history. Their fields are all of their state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ocar.errors import InputError
from ocar.metrics.stability import ROUNDING


@dataclass
class Mean:
    """A mean as a sum and a count."""

    total: float = 0.0
    number: int = 0

    def update(self, value: float) -> None:
        """Add a value."""
        self.total += value
        self.number += 1

    def compute(self) -> float:
        """The mean; NaN without values."""
        return self.total / self.number if self.number else float("nan")


class AnytimeAccuracy(Mean):
    """AAA so far, updated with the accuracy on all tasks so far."""


@dataclass
class WorstCaseAccuracy:
    """WC-Acc so far."""

    latest: tuple[float, ...] = ()  #: Accuracies at the last evaluation.
    lowest: tuple[float, ...] = ()  #: The lowest accuracy of each task since it ended.

    def update(self, accuracies: Sequence[float]) -> None:
        """Add the accuracy on each task up to the current one."""
        _check_growing(self.latest, accuracies)
        known = (*self.lowest, *(1.0,) * len(accuracies))  # the first value replaces the 1
        self.lowest = tuple(map(min, accuracies[:-1], known))
        self.latest = tuple(accuracies)

    def compute(self) -> float:
        """WC-Acc; NaN before the first evaluation."""
        if not self.latest:
            return float("nan")
        return (self.latest[-1] + sum(self.lowest)) / len(self.latest)


@dataclass
class Forgetting:
    """Accuracy lost on each task so far."""

    latest: tuple[float, ...] = ()  #: Accuracies at the last evaluation.
    learned: tuple[float, ...] = ()  #: Accuracy of each task when it was last current.

    def update(self, accuracies: Sequence[float]) -> None:
        """Add the accuracy on each task up to the current one."""
        _check_growing(self.latest, accuracies)
        ended = self.learned
        if len(accuracies) == len(ended):
            ended = ended[:-1]  # the task goes on
        self.latest, self.learned = tuple(accuracies), (*ended, *accuracies[len(ended) :])

    def compute(self) -> tuple[float, ...]:
        """One number a task; 0 for the current one."""
        return tuple(a - b for a, b in zip(self.learned, self.latest, strict=True))


@dataclass
class OpenGap:
    """The gap since the last boundary, see :class:`~ocar.metrics.Gap`."""

    tasks: int  #: Tasks before the boundary.
    before: float  #: Accuracy on these tasks just before it.
    lowest: float = float("inf")  #: The lowest accuracy since.
    fell: int = 0  #: The evaluation with the lowest, counted from the boundary.
    back: int | None = None  #: The first evaluation after the lowest that has recovered.
    evaluations: int = 0  #: Evaluations since the boundary.

    def update(self, accuracy: float) -> None:
        """Add the accuracy on the tasks before the boundary."""
        place, recovered = self.evaluations, accuracy >= self.before - ROUNDING
        self.evaluations += 1
        if accuracy < self.lowest - ROUNDING:
            self.lowest, self.fell, self.back = accuracy, place, place if recovered else None
        elif self.back is None and recovered:
            self.back = place

    def compute(self) -> tuple[float, int, bool]:
        """The drop, the evaluations to recover, whether it recovered, if the gap ended now."""
        count = self.evaluations if self.back is None else self.back + 1
        if self.back == self.fell:  # even the lowest is no fall
            count = 0
        return max(0.0, self.before - self.lowest), count, self.back is not None


@dataclass
class StabilityGap:
    """Mean drop and recovery at the boundaries so far."""

    latest: tuple[float, ...] = ()  #: Accuracies at the last evaluation.
    drops: Mean = field(default_factory=Mean)  #: Drops at all boundaries but the last.
    recoveries: Mean = field(default_factory=Mean)  #: Evaluations to recover from these.
    gap: OpenGap | None = None  #: The gap at the last boundary.
    recovered: Mean = field(default_factory=Mean)  #: Whether each of these recovered.

    def update(self, accuracies: Sequence[float], sizes: Sequence[int]) -> None:
        """Add the accuracy on each task up to the current one, and the samples of each."""
        _check_growing(self.latest, accuracies)
        earlier = len(self.latest)
        if len(accuracies) > earlier > 0:  # a boundary
            self.drops, self.recoveries, self.recovered = self._closed()
            self.gap = OpenGap(tasks=earlier, before=_pooled(self.latest, sizes[:earlier]))
        if self.gap is not None:
            tasks = self.gap.tasks
            self.gap.update(_pooled(accuracies[:tasks], sizes[:tasks]))
        self.latest = tuple(accuracies)

    def compute(self) -> tuple[float, float, float]:
        """Mean drop, mean evaluations to recover, share recovered; NaN before a boundary."""
        drops, recoveries, recovered = self._closed()
        return drops.compute(), recoveries.compute(), recovered.compute()

    def _closed(self) -> tuple[Mean, Mean, Mean]:
        """The means with the gap at the last boundary."""
        means = self.drops, self.recoveries, self.recovered
        if self.gap is None:
            return means
        drop, count, recovered = (
            Mean(mean.total + value, mean.number + 1)
            for mean, value in zip(means, self.gap.compute(), strict=True)
        )
        return drop, count, recovered


def _pooled(accuracies: Sequence[float], sizes: Sequence[int]) -> float:
    return sum(a * n for a, n in zip(accuracies, sizes, strict=True)) / sum(sizes)


def _check_growing(before: Sequence[float], accuracies: Sequence[float]) -> None:
    if not accuracies or len(accuracies) < len(before):
        raise InputError(
            f"Invalid accuracies of {len(accuracies)} tasks after those of {len(before)}. "
            "No task may be lost."
        )
