"""The metrics of a run from its events."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ocar import metrics
from ocar.errors import InputError
from ocar.evaluate.history import History
from ocar.events import Counts, Evaluated, Summary

_ON_VALIDATION = (
    "aaa",
    "wc_acc",
    "forgetting",
    "forgetting_mean",
    "plasticity",
    "stability_gap",
    "recovery",
)


def summarize(
    history: Sequence[Evaluated] | History,
    *,
    test: Counts,
    seconds: float,
    probe: float | None = None,
) -> Summary:
    """The metrics of a run.

    Args:
        history: Every evaluation of the run, in order; or what is kept of them.
        test: Results on the test data at the end.
        seconds: Seconds of training.
        probe: Probed Acc, where it was measured.
    """
    past = history if isinstance(history, History) else History(history)
    last = past.last
    if last is None:
        raise InputError("No evaluation to summarize: the stream has no batch left, no history.")
    online = None if last.online_correct is None else last.online_correct / last.seen
    return Summary(
        acc=_defined(test.accuracy),
        **(_on_validation(past) if last.sizes else dict.fromkeys(_ON_VALIDATION)),
        seconds=seconds,
        probe=probe,
        online_acc=online,
        l_p=last.l_p,
        l_s=last.l_s,
        first_task_seconds=past.first_task_seconds,
    )


def _on_validation(history: History) -> dict[str, float | None]:
    values = _of_events(history.events) if history.whole else _of_sums(history)
    return dict(zip(_ON_VALIDATION, map(_defined, values), strict=True))


def _of_events(events: Sequence[Evaluated]) -> tuple[float, ...]:
    array = metrics.history_array([event.accuracies for event in events])
    sizes = events[-1].sizes
    gaps = metrics.stability_gaps(array, sizes=sizes)
    return (
        metrics.average_anytime_accuracy(array, sizes=sizes),
        metrics.worst_case_accuracy(array),
        metrics.first_task_forgetting(array),
        metrics.mean_forgetting(array),
        metrics.last_task_accuracy(array),
        metrics.mean_gap(gaps),
        metrics.mean_recovery(gaps),
    )


def _of_sums(history: History) -> tuple[float, ...]:
    """The same, up to rounding."""
    lost = history.forgetting.compute()
    earlier = lost[:-1]
    return (
        history.anytime.compute(),
        history.worst_case.compute(),
        lost[0],
        sum(earlier) / len(earlier) if earlier else math.nan,
        history.worst_case.state.latest[-1],
        *history.gaps.compute(),
    )


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
