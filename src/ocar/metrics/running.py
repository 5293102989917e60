"""Metrics of a run that is under way: a state, how a measurement changes it, what it says.

Each is a pair of pure functions, ``update_...`` and ``compute_...``, and a class that holds the
state between them. At the end they say what the functions of the whole history say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ocar.errors import InputError
from ocar.metrics.stability import ROUNDING

NAN = float("nan")


class Mean(NamedTuple):
    """Sum and number of some values."""

    total: float = 0.0
    number: int = 0


class Worst(NamedTuple):
    """Accuracies at the last evaluation and the lowest of each task since it ended."""

    latest: tuple[float, ...] = ()
    lowest: tuple[float, ...] = ()


class Ended(NamedTuple):
    """Accuracies at the last evaluation and, of each task, when it was last current."""

    latest: tuple[float, ...] = ()
    learned: tuple[float, ...] = ()


class OpenGap(NamedTuple):
    """What has happened since the last boundary, as :class:`~ocar.metrics.Gap` has it."""

    tasks: int
    """Tasks before it."""

    before: float
    """Accuracy on these just before it."""

    lowest: float = float("inf")
    """The lowest since."""

    fell: int = 0
    """Evaluations after the boundary until the lowest."""

    back: int | None = None
    """Evaluations until the accuracy was back, after the lowest; None if it is not."""

    evaluations: int = 0
    """Evaluations since."""


class Gaps(NamedTuple):
    """Accuracies at the last evaluation, and the stability gap at each boundary, summed."""

    latest: tuple[float, ...] = ()
    drops: Mean = Mean()
    recoveries: Mean = Mean()
    gap: OpenGap | None = None


def update_anytime(state: Mean, accuracy: float) -> Mean:
    """Take in the accuracy on all tasks so far."""
    return Mean(state.total + accuracy, state.number + 1)


def compute_anytime(state: Mean) -> float:
    """AAA so far; NaN before the first evaluation."""
    return state.total / state.number if state.number else NAN


def update_worst_case(state: Worst, accuracies: Sequence[float]) -> Worst:
    """Take in the accuracy on each task up to the current one."""
    _check_growing(state.latest, accuracies)
    known = (*state.lowest, *(1.0,) * len(accuracies))  # a first value is the lowest of its task
    lowest = tuple(map(min, accuracies[:-1], known))
    return Worst(tuple(accuracies), lowest)


def compute_worst_case(state: Worst) -> float:
    """WC-Acc so far; NaN before the first evaluation."""
    if not state.latest:
        return NAN
    tasks = len(state.latest)
    return (state.latest[-1] + sum(state.lowest)) / tasks


def update_forgetting(state: Ended, accuracies: Sequence[float]) -> Ended:
    """Take in the accuracy on each task up to the current one."""
    _check_growing(state.latest, accuracies)
    ended = state.learned
    if len(accuracies) == len(state.learned):
        ended = ended[:-1]  # the task goes on
    return Ended(tuple(accuracies), (*ended, *accuracies[len(ended) :]))


def compute_forgetting(state: Ended) -> tuple[float, ...]:
    """Accuracy lost on each task since it ended; of the current one it is 0."""
    return tuple(a - b for a, b in zip(state.learned, state.latest, strict=True))


def update_gaps(state: Gaps, accuracies: Sequence[float], sizes: Sequence[int]) -> Gaps:
    """Take in the accuracy on each task up to the current one, and the samples of each."""
    _check_growing(state.latest, accuracies)
    gap = state.gap
    drops, recoveries = state.drops, state.recoveries
    if len(accuracies) > len(state.latest) > 0:  # a boundary
        drops, recoveries = _close(state)
        earlier = len(state.latest)
        gap = OpenGap(tasks=earlier, before=_pooled(state.latest, sizes[:earlier]))
    if gap is not None:
        gap = _extend(gap, _pooled(accuracies[: gap.tasks], sizes[: gap.tasks]))
    return Gaps(tuple(accuracies), drops, recoveries, gap)


def compute_gaps(state: Gaps) -> tuple[float, float]:
    """Mean drop and mean evaluations to recover so far; NaN before the first boundary."""
    drops, recoveries = _close(state)
    if not drops.number:
        return NAN, NAN
    return drops.total / drops.number, recoveries.total / recoveries.number


def _extend(gap: OpenGap, accuracy: float) -> OpenGap:
    place, recovered = gap.evaluations, accuracy >= gap.before - ROUNDING
    gap = gap._replace(evaluations=place + 1)
    if accuracy < gap.lowest - ROUNDING:
        return gap._replace(lowest=accuracy, fell=place, back=place if recovered else None)
    if gap.back is None and recovered:
        return gap._replace(back=place)
    return gap


def _close(state: Gaps) -> tuple[Mean, Mean]:
    """The drops and recoveries with those of the boundary that is under way."""
    gap = state.gap
    if gap is None:
        return state.drops, state.recoveries
    count = gap.evaluations if gap.back is None else gap.back + 1
    if gap.back == gap.fell:  # even the lowest is no fall
        count = 0
    return (
        Mean(state.drops.total + max(0.0, gap.before - gap.lowest), state.drops.number + 1),
        Mean(state.recoveries.total + count, state.recoveries.number + 1),
    )


def _pooled(accuracies: Sequence[float], sizes: Sequence[int]) -> float:
    right = sum(a * n for a, n in zip(accuracies, sizes, strict=True))
    return right / sum(sizes)


def update_loss(state: Mean, loss: float) -> Mean:
    """Take in the loss of a step."""
    return Mean(state.total + loss, state.number + 1)


def compute_loss(state: Mean) -> float:
    """The loss accumulated so far."""
    return state.total


class AnytimeAccuracy:
    """AAA so far."""

    def __init__(self) -> None:
        self.state = Mean()

    def update(self, accuracy: float) -> None:
        """Take in the accuracy on all tasks so far."""
        self.state = update_anytime(self.state, accuracy)

    def compute(self) -> float:
        """AAA; NaN before the first evaluation."""
        return compute_anytime(self.state)


class WorstCaseAccuracy:
    """WC-Acc so far."""

    def __init__(self) -> None:
        self.state = Worst()

    def update(self, accuracies: Sequence[float]) -> None:
        """Take in the accuracy on each task up to the current one."""
        self.state = update_worst_case(self.state, accuracies)

    def compute(self) -> float:
        """WC-Acc; NaN before the first evaluation."""
        return compute_worst_case(self.state)


class Forgetting:
    """Accuracy lost on each task so far."""

    def __init__(self) -> None:
        self.state = Ended()

    def update(self, accuracies: Sequence[float]) -> None:
        """Take in the accuracy on each task up to the current one."""
        self.state = update_forgetting(self.state, accuracies)

    def compute(self) -> tuple[float, ...]:
        """One number a task; of the current one it is 0."""
        return compute_forgetting(self.state)


class StabilityGap:
    """Mean drop and recovery at the boundaries so far."""

    def __init__(self) -> None:
        self.state = Gaps()

    def update(self, accuracies: Sequence[float], sizes: Sequence[int]) -> None:
        """Take in the accuracy on each task up to the current one, and the samples of each."""
        self.state = update_gaps(self.state, accuracies, sizes)

    def compute(self) -> tuple[float, float]:
        """Mean drop and mean evaluations to recover; NaN before the first boundary."""
        return compute_gaps(self.state)


class CumulativeLoss:
    """L_p or L_s so far.

    Args:
        total: What was accumulated before.
    """

    def __init__(self, total: float = 0.0) -> None:
        self.state = Mean(total=total)

    def update(self, loss: float) -> None:
        """Take in the loss of a step."""
        self.state = update_loss(self.state, loss)

    def compute(self) -> float:
        """The loss accumulated."""
        return compute_loss(self.state)


def _check_growing(before: Sequence[float], accuracies: Sequence[float]) -> None:
    if not accuracies or len(accuracies) < len(before):
        raise InputError(
            f"Invalid accuracies of {len(accuracies)} tasks after those of {len(before)}. "
            "No task may be lost."
        )
