"""The metrics of a run so far, from running sums: their memory does not grow with the stream.

The run folder has the first ``ALL`` evaluations, and fewer and fewer of those that follow, see
:func:`is_kept`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any

from ocar.errors import CheckpointError, InputError
from ocar.events import Counts, Evaluated, Summary
from ocar.metrics import AnytimeAccuracy, Forgetting, StabilityGap, WorstCaseAccuracy
from ocar.metrics.running import Mean, OpenGap
from ocar.metrics.validation import NAMES, by_name

ALL = 1 << 14
"""Evaluations that are all written: more than any benchmark has."""


def is_kept(number: int) -> bool:
    """Whether evaluation ``number``, counted from 0, is written to the run folder.

    After the first ``ALL`` it is every second one, after twice as many every fourth, and so on:
    each doubling of the stream adds ``ALL / 2``. It depends on the number only, so a resumed run
    keeps the same ones.
    """
    return number % (1 << (number // ALL).bit_length()) == 0


class History:
    """The running sums of the metrics.

    Attributes:
        last: The last evaluation; None before the first.
        count: Number of evaluations so far.
        first_task_seconds: Seconds of training on the first task; None before it is evaluated.
    """

    def __init__(self, events: Sequence[Evaluated] = ()) -> None:
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
        """Whether every evaluation so far is in the run folder."""
        return self.count <= ALL

    def add(self, event: Evaluated) -> None:
        """Add the next evaluation."""
        self.count += 1
        self.last = event
        if event.task == 0:
            self.first_task_seconds = event.seconds
        if event.sizes:
            self.anytime.update(event.accuracy)
            self.worst_case.update(event.accuracies)
            self.forgetting.update(event.accuracies)
            self.gaps.update(event.accuracies, event.sizes)

    def state(self) -> dict[str, Any]:
        """All of it, in plain values."""
        return {
            "count": self.count,
            "last": None if self.last is None else asdict(self.last),
            "first_task_seconds": self.first_task_seconds,
            "anytime": astuple(self.anytime),
            "worst_case": astuple(self.worst_case),
            "forgetting": astuple(self.forgetting),
            "gaps": astuple(self.gaps),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> History:
        """A history from its :meth:`state`; a ``CheckpointError`` if it is none."""
        history = cls()
        try:
            history.count = int(state["count"])
            last: dict[str, Any] = dict(state["last"])
            counts = {name: tuple(last[name]) for name in ("correct", "sizes")}
            history.last = Evaluated(**{**last, **counts})
            history.first_task_seconds = state["first_task_seconds"]
            history.anytime = AnytimeAccuracy(*state["anytime"])
            history.worst_case = WorstCaseAccuracy(*map(tuple, state["worst_case"]))
            history.forgetting = Forgetting(*map(tuple, state["forgetting"]))
            latest, drops, recoveries, gap, recovered = state["gaps"]
            gap = None if gap is None else OpenGap(*gap)
            means = Mean(*drops), Mean(*recoveries), gap, Mean(*recovered)
            history.gaps = StabilityGap(tuple(latest), *means)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"The state is not of a history: {error!r}.") from error
        return history


def summarize(
    history: Sequence[Evaluated] | History,
    *,
    test: Counts,
    seconds: float,
    probe: float | None = None,
) -> Summary:
    """The metrics of a run.

    Args:
        history: Every evaluation of the run, in order.
        test: Results on the test data at the end.
        seconds: Seconds of training.
        probe: Probed Acc, if it was measured.
    """
    past = history if isinstance(history, History) else History(history)
    last = past.last
    if last is None:
        raise InputError("No evaluation to summarize: the stream has no batch left, no history.")
    return Summary(
        acc=None if math.isnan(test.accuracy) else test.accuracy,
        **(_on_validation(past) if last.sizes else dict.fromkeys(NAMES)),
        seconds=seconds,
        probe=probe,
        online_acc=None if last.online_correct is None else last.online_correct / last.seen,
        l_p=last.l_p,
        l_s=last.l_s,
        first_task_seconds=past.first_task_seconds,
    )


def _on_validation(history: History) -> dict[str, float | None]:
    lost = history.forgetting.compute()
    return by_name(
        (
            history.anytime.compute(),
            history.worst_case.compute(),
            lost[0],
            sum(lost[:-1]) / len(lost[:-1]) if lost[:-1] else math.nan,
            history.worst_case.latest[-1],
            *history.gaps.compute(),
        )
    )
