"""The evaluations of a run so far, in memory that does not grow with the stream.

The first ones are all kept, and the metrics are computed from them. Of a stream with more, sums
are carried on that say the same, and fewer and fewer evaluations are worth writing down:
:func:`is_kept` says which, from the number of an evaluation alone, so that a run that goes on
from the middle keeps the same ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ocar.errors import CheckpointError
from ocar.events import Evaluated
from ocar.metrics import AnytimeAccuracy, Forgetting, StabilityGap, WorstCaseAccuracy
from ocar.metrics.running import Ended, Gaps, Mean, OpenGap, Worst

ALL = 1 << 14
"""So many evaluations are all kept: more than any benchmark has."""


def is_kept(number: int) -> bool:
    """Whether an evaluation is worth writing down.

    After the first ``ALL`` it is every second one, after twice as many every fourth, and so on:
    each doubling of the stream adds ``ALL / 2`` of them.

    Args:
        number: How many evaluations there were before it.
    """
    return number % (1 << (number // ALL).bit_length()) == 0


class History:
    """The evaluations so far, or the first ones and what the metrics need of the rest.

    Args:
        events: The evaluations so far, all of them.

    Attributes:
        events: All evaluations; empty once there are more than ``ALL``.
        last: The last one; None before the first.
        count: How many there were.
        first_task_seconds: Seconds of training on the first task; None before it is evaluated.
    """

    def __init__(self, events: Sequence[Evaluated] = ()) -> None:
        self.events: list[Evaluated] = []
        self.last: Evaluated | None = None
        self.count = 0
        self.first_task_seconds: float | None = None
        self.anytime = AnytimeAccuracy()
        self.worst_case = WorstCaseAccuracy()
        self.forgetting = Forgetting()
        self.gaps = StabilityGap()
        for event in events:
            self.add(event)

    @property
    def whole(self) -> bool:
        """Whether ``events`` are all of them."""
        return self.count == len(self.events)

    def add(self, event: Evaluated) -> None:
        """Take in the next evaluation."""
        self.count += 1
        if self.count <= ALL:
            self.events.append(event)
        else:
            self.events.clear()
        self.last = event
        if event.task == 0:
            self.first_task_seconds = event.seconds
        if event.sizes:
            accuracies = event.accuracies
            self.anytime.update(event.accuracy)
            self.worst_case.update(accuracies)
            self.forgetting.update(accuracies)
            self.gaps.update(accuracies, event.sizes)

    def state(self) -> dict[str, Any]:
        """All but the events, in plain values."""
        return {
            "count": self.count,
            "last": None if self.last is None else dataclasses.asdict(self.last),
            "first_task_seconds": self.first_task_seconds,
            "anytime": self.anytime.state,
            "worst_case": self.worst_case.state,
            "forgetting": self.forgetting.state,
            "gaps": self.gaps.state,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> History:
        """A history of which the events are no longer there.

        Args:
            state: What :meth:`state` gave.

        Raises:
            CheckpointError: It is not such a state.
        """
        history = cls()
        try:
            history.count = int(state["count"])
            history.last = Evaluated(**{k: _frozen(v) for k, v in state["last"].items()})
            history.first_task_seconds = state["first_task_seconds"]
            history.anytime.state = Mean(*state["anytime"])
            history.worst_case.state = Worst(*map(tuple, state["worst_case"]))
            history.forgetting.state = Ended(*map(tuple, state["forgetting"]))
            latest, drops, recoveries, gap = state["gaps"]
            history.gaps.state = Gaps(
                tuple(latest),
                Mean(*drops),
                Mean(*recoveries),
                None if gap is None else OpenGap(*gap),
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"The state is not of a history: {error!r}.") from error
        return history


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
