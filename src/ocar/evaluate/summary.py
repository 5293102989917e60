"""The metrics of a run from its events."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ocar import metrics
from ocar.errors import InputError
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
    history: Sequence[Evaluated], *, test: Counts, seconds: float, probe: float | None = None
) -> Summary:
    """The metrics of a run.

    Args:
        history: Every evaluation of the run, in order.
        test: Results on the test data at the end.
        seconds: Seconds of training.
        probe: Probed Acc, where it was measured.
    """
    if not history:
        raise InputError("No evaluation to summarize: the stream has no batch left, no history.")
    last = history[-1]
    first = [event.seconds for event in history if event.task == 0]
    online = None if last.online_correct is None else last.online_correct / last.seen
    return Summary(
        acc=_defined(test.accuracy),
        **(_on_validation(history) if last.sizes else dict.fromkeys(_ON_VALIDATION)),
        seconds=seconds,
        probe=probe,
        online_acc=online,
        l_p=last.l_p,
        l_s=last.l_s,
        first_task_seconds=first[-1] if first else None,
    )


def _on_validation(history: Sequence[Evaluated]) -> dict[str, float | None]:
    array = metrics.history_array([event.accuracies for event in history])
    sizes = history[-1].sizes
    gaps = metrics.stability_gaps(array, sizes=sizes)
    values = (
        metrics.average_anytime_accuracy(array, sizes=sizes),
        metrics.worst_case_accuracy(array),
        metrics.first_task_forgetting(array),
        metrics.mean_forgetting(array),
        metrics.last_task_accuracy(array),
        metrics.mean_gap(gaps),
        metrics.mean_recovery(gaps),
    )
    return dict(zip(_ON_VALIDATION, map(_defined, values), strict=True))


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
