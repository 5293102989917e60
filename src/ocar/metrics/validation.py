"""The metrics on validation data by name, as a run's summary has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy.typing as npt

from ocar.metrics.accuracy import (
    Floats,
    average_anytime_accuracy,
    first_task_forgetting,
    last_task_accuracy,
    mean_forgetting,
    worst_case_accuracy,
)
from ocar.metrics.stability import mean_gap, mean_recovery, stability_gaps

NAMES = (
    "aaa",
    "wc_acc",
    "forgetting",
    "forgetting_mean",
    "plasticity",
    "stability_gap",
    "recovery",
)
"""Their names, in order."""


def validation_metrics(history: Floats, *, sizes: npt.ArrayLike | None) -> dict[str, float | None]:
    """The metrics of a whole history; None where one is not defined.

    Args:
        history: ``(evaluations, tasks)``.
        sizes: Validation samples of each task.
    """
    gaps = stability_gaps(history, sizes=sizes)
    return by_name(
        (
            average_anytime_accuracy(history, sizes=sizes),
            worst_case_accuracy(history),
            first_task_forgetting(history),
            mean_forgetting(history),
            last_task_accuracy(history),
            mean_gap(gaps),
            mean_recovery(gaps),
        )
    )


def by_name(values: Sequence[float]) -> dict[str, float | None]:
    """Values in the order of :data:`NAMES`, with None for NaN."""
    return {n: None if math.isnan(v) else v for n, v in zip(NAMES, values, strict=True)}
