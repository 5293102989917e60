"""Student's confidence interval of a mean.

Student's t with an integer number of degrees of freedom ν has a distribution in closed form: with
θ = arctan(t / √ν), the probability of |T| < t is a finite sum in sin θ and cos θ (Abramowitz &
Stegun, 26.7.3 and 26.7.4). So the quantiles need no SciPy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ocar.errors import InputError


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> Interval | None:
    """The interval mean ± t · s / √n, with t of n − 1 degrees of freedom.

    Args:
        values: Independent measurements.
        level: How often such an interval contains the true mean.

    Returns:
        The interval; None for one measurement, which has no spread.
    """
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = student_quantile((1 + level) / 2, len(values) - 1) * error
    return Interval(mean - half, mean + half)


def student_quantile(probability: float, freedom: int) -> float:
    """The value that a Student's t stays below with a probability.

    Args:
        probability: In (0, 1).
        freedom: Degrees of freedom ν, at least 1.
    """
    if not 0 < probability < 1:
        raise InputError(f"Invalid {probability=}. Must be in (0, 1).")
    if freedom < 1:
        raise InputError(f"Invalid {freedom=}. Must be at least 1.")
    if probability < 0.5:
        return -student_quantile(1 - probability, freedom)
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:  # bisection, to the last bit
        if _within(middle, freedom) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(high)


def _within(angle: float, freedom: int) -> float:
    """The probability that T is within ± √ν tan θ, for an angle θ in [0, π/2]."""
    odd = freedom % 2
    square = math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for i in range(freedom // 2):
        total += term
        term *= square * (2 * i + 1 + odd) / (2 * i + 2 + odd)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
