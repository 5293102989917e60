"""The metrics on validation data by name, as a run's summary has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy.typing as npt

from ocar.metrics import accuracy, stability

NAMES = (
    "aaa",
    "wc_acc",
    "forgetting",
    "forgetting_mean",
    "plasticity",
    "stability_gap",
    "recovery",
    "recovered",
)
"""Their names, in order."""


def validation_metrics(
    history: accuracy.Floats, *, sizes: npt.ArrayLike | None
) -> dict[str, float | None]:
    """The metrics of a history ``(evaluations, tasks)``; None where one is not defined."""
    gaps = stability.stability_gaps(history, sizes=sizes)
    return by_name(
        (
            accuracy.average_anytime_accuracy(history, sizes=sizes),
            accuracy.worst_case_accuracy(history),
            accuracy.first_task_forgetting(history),
            accuracy.mean_forgetting(history),
            accuracy.last_task_accuracy(history),
            stability.mean_gap(gaps),
            stability.mean_recovery(gaps),
            stability.share_recovered(gaps),
        )
    )


def by_name(values: Sequence[float]) -> dict[str, float | None]:
    """Values in the order of :data:`NAMES`, with None for NaN."""
    return {n: None if math.isnan(v) else v for n, v in zip(NAMES, values, strict=True)}
