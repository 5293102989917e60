"""The metrics of a run from its events."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ocar.errors import InputError
from ocar.evaluate.history import History
from ocar.events import Counts, Evaluated, Summary
from ocar.metrics import history_array
from ocar.metrics.validation import NAMES, by_name, validation_metrics


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
        **(_on_validation(past) if last.sizes else dict.fromkeys(NAMES)),
        seconds=seconds,
        probe=probe,
        online_acc=online,
        l_p=last.l_p,
        l_s=last.l_s,
        first_task_seconds=past.first_task_seconds,
    )


def _on_validation(history: History) -> dict[str, float | None]:
    if not history.whole:
        return by_name(_of_sums(history))
    array = history_array([event.accuracies for event in history.events])
    return validation_metrics(array, sizes=history.events[-1].sizes)


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
