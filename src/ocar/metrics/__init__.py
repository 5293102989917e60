"""The metrics of a stream: functions of a history of accuracies, and classes for a run in progress.

:mod:`.accuracy` says what a history is. The interval of a mean over seeds is in :mod:`.interval`.
"""

from ocar.metrics.accuracy import (
    Floats,
    anytime_accuracy,
    average_anytime_accuracy,
    first_task_forgetting,
    history_array,
    last_task_accuracy,
    mean_forgetting,
    task_forgetting,
    worst_case_accuracy,
)
from ocar.metrics.interval import Interval, mean_interval, student_quantile
from ocar.metrics.running import AnytimeAccuracy, Forgetting, StabilityGap, WorstCaseAccuracy
from ocar.metrics.stability import Gap, mean_gap, mean_recovery, stability_gaps

__all__ = [
    "AnytimeAccuracy",
    "Floats",
    "Forgetting",
    "Gap",
    "Interval",
    "StabilityGap",
    "WorstCaseAccuracy",
    "anytime_accuracy",
    "average_anytime_accuracy",
    "first_task_forgetting",
    "history_array",
    "last_task_accuracy",
    "mean_forgetting",
    "mean_gap",
    "mean_interval",
    "mean_recovery",
    "stability_gaps",
    "student_quantile",
    "task_forgetting",
    "worst_case_accuracy",
]
