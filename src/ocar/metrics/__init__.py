"""What is measured over a stream.

Each metric is a pure function of what was measured over time: accuracies (:mod:`.history` says
in which form) or losses. Where a value is wanted while a run goes on, there is also a pair of
pure functions, one that takes in a measurement and one that computes, and a thin class that
holds their state (:mod:`.running`).
"""

from ocar.metrics.accuracy import (
    accuracy,
    anytime_accuracy,
    average_anytime_accuracy,
    first_task_forgetting,
    last_task_accuracy,
    mean_forgetting,
    task_forgetting,
    worst_case_accuracy,
)
from ocar.metrics.history import Floats, current_tasks, history_array, task_accuracy
from ocar.metrics.loss import cumulative_loss
from ocar.metrics.running import (
    AnytimeAccuracy,
    CumulativeLoss,
    Forgetting,
    StabilityGap,
    WorstCaseAccuracy,
)
from ocar.metrics.stability import Gap, mean_gap, mean_recovery, stability_gaps

__all__ = [
    "AnytimeAccuracy",
    "CumulativeLoss",
    "Floats",
    "Forgetting",
    "Gap",
    "StabilityGap",
    "WorstCaseAccuracy",
    "accuracy",
    "anytime_accuracy",
    "average_anytime_accuracy",
    "cumulative_loss",
    "current_tasks",
    "first_task_forgetting",
    "history_array",
    "last_task_accuracy",
    "mean_forgetting",
    "mean_gap",
    "mean_recovery",
    "stability_gaps",
    "task_accuracy",
    "task_forgetting",
    "worst_case_accuracy",
]
