"""When a trial is not worth going on with.

After each task but the first and the last a trial is compared with those that got as far: if its
value is worse than the median of theirs after the same task, it is stopped. The first ten trials
are never stopped. The first task says nothing yet about forgetting, so it does not count.

Optuna's own pruners look at the best value of a trial so far. Here values get worse by nature, as
tasks are added, and the best would always be that of the first task.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

TRIALS = 10
"""Trials that are judged to the end, and that there have to be for a comparison."""

FIRST = 1
"""The first task after which trials are compared."""

RULE = f"worse than the median after the same task, from task {FIRST + 1}, {TRIALS} trials"
"""The rule in words."""


def is_hopeless(
    value: float, others: Sequence[float], *, task: int, last: int, lower_is_better: bool
) -> bool:
    """Whether to stop a trial.

    Args:
        value: Its value after a task.
        others: The values of other trials after the same task.
        task: The task, counted from 0.
        last: The task after which trials are judged.
        lower_is_better: Which values are better.
    """
    if not FIRST <= task < last or len(others) < TRIALS:
        return False
    median = statistics.median(others)
    return value > median if lower_is_better else value < median
