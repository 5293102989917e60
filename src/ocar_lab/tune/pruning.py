"""When a trial is not worth going on with.

From the second task on, late in each, a trial is compared with those that got as far: only the
best eighth goes on. The first five trials are never stopped. The first task says nothing yet
about forgetting, so it does not count.

This is successive halving as Li et al. do it for trials side by side (A System for Massively
Parallel Hyperparameter Tuning, MLSys 2020), tasks in place of epochs. Optuna's own pruners look at
the best value of a trial so far. Here values get worse by nature, as tasks are added, and the best
would always be that of the first task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TRIALS = 5
"""Trials that there have to be for a comparison, as in Optuna's own pruners."""

FIRST = 1
"""The first task in which trials are compared."""

KEPT = 1 / 8
"""The part of the trials that goes on from each task."""

RULE = (
    f"after the same batch not in the best {KEPT:.1%}, late in each task from task {FIRST + 1}, "
    f"{TRIALS} trials"
)
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
    better = sum(other < value if lower_is_better else other > value for other in others)
    return better >= math.ceil(KEPT * (len(others) + 1))
