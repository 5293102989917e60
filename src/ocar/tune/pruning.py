"""When a trial is not worth going on with.

From the second task on, several times in each, a trial is compared with those that got as far: if
its value is worse than the median of theirs after the same batch, it is stopped. The first five
trials are never stopped. The first task says nothing yet about forgetting, so it does not count.

Optuna's own pruners look at the best value of a trial so far. Here values get worse by nature, as
tasks are added, and the best would always be that of the first task.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

TRIALS = 5
"""Trials that there have to be for a comparison, as in Optuna's own pruners."""

FIRST = 1
"""The first task after which trials are compared."""

RULE = f"worse than the median after the same batch, from task {FIRST + 1}, {TRIALS} trials"
"""The rule in words."""


def is_hopeless(value: float, others: Sequence[float], *, task: int, lower_is_better: bool) -> bool:
    """Whether to stop a trial.

    Args:
        value: Its value after a batch.
        others: The values of other trials after the same batch.
        task: The task of the batch, counted from 0.
        lower_is_better: Which values are better.
    """
    if task < FIRST or len(others) < TRIALS:
        return False
    median = statistics.median(others)
    return value > median if lower_is_better else value < median
