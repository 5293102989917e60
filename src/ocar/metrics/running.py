"""Metrics of a run that is under way: a state, how a measurement changes it, what it says.

Each is a pair of pure functions, ``update_...`` and ``compute_...``, and a class that holds the
state between them. At the end they say what the functions of the whole history say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ocar.errors import InputError

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
