"""Losses of a regression stream, accumulated: L_p and L_s.

``L_p = Σ_t L(y_t, ŷ_t)`` sums the loss of each incoming batch before it is learned and shows how
fast a learner adapts; ``L_s = Σ_t L(y_0:t, ŷ_0:t)`` sums the loss on all data so far after each
step and shows how stable it is. L is the mean squared error.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ocar.errors import InputError
from ocar.metrics.history import Floats


def cumulative_loss(losses: npt.ArrayLike) -> Floats:
    """L_p or L_s after each step.

    Args:
        losses: The loss of each step in order, ``(steps,)``.

    Returns:
        ``(steps,)``; the last is the whole stream's.
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1:
        raise InputError(f"Invalid losses of shape {values.shape}. Must be (steps,).")
    total: Floats = values.cumsum()
    return total
