"""The metrics of a stream: functions of a history of accuracies, and classes for a run in progress.

:mod:`.accuracy` says what a history is, :mod:`.forecast` has the errors of forecasts.
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
from ocar.metrics.detection import auroc, false_positive_rate
from ocar.metrics.forecast import PrequentialError, column_errors, mase, naive_scale
from ocar.metrics.running import AnytimeAccuracy, Forgetting, StabilityGap, WorstCaseAccuracy
from ocar.metrics.stability import (
    Gap,
    mean_gap,
    mean_recovery,
    share_recovered,
    stability_gaps,
)

__all__ = [
    "AnytimeAccuracy",
    "Floats",
    "Forgetting",
    "Gap",
    "PrequentialError",
    "StabilityGap",
    "WorstCaseAccuracy",
    "anytime_accuracy",
    "auroc",
    "average_anytime_accuracy",
    "column_errors",
    "false_positive_rate",
    "first_task_forgetting",
    "history_array",
    "last_task_accuracy",
    "mase",
    "mean_forgetting",
    "mean_gap",
    "mean_recovery",
    "naive_scale",
    "share_recovered",
    "stability_gaps",
    "task_forgetting",
    "worst_case_accuracy",
]
