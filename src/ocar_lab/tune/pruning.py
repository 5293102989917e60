"""When to prune a trial.

Late in each task, from the second on, a trial is compared with the trials that got as far: only the
best eighth continues. The first five trials are never pruned. The first task does not count,
since it says nothing about forgetting.

This is asynchronous successive halving (Li et al., A System for Massively Parallel Hyperparameter
Tuning, MLSys 2020) with tasks in place of epochs. Optuna's own pruners compare the best value of a
trial so far. Here values fall as tasks are added, so that the best would be that of the first task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TRIALS = 5
"""Trials that a comparison needs, as in Optuna's own pruners."""

FIRST = 1
"""Index of the first task in which trials are compared."""

KEPT = 1 / 8
"""Share of the trials that continue from each task."""

RULE = (
    f"after the same batch not in the best {KEPT:.1%}, late in each task from task {FIRST + 1}, "
    f"{TRIALS} trials"
)
"""The rule in words, as studies store it."""


def is_hopeless(value: float, others: Sequence[float], *, lower_is_better: bool) -> bool:
    """Whether a value is not in the best eighth of all values after the same batch."""
    better = sum(other < value if lower_is_better else other > value for other in others)
    return len(others) >= TRIALS and better >= math.ceil(KEPT * (len(others) + 1))
