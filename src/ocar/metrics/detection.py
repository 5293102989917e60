"""How well a score tells samples of known classes from others (out of scope).

A score is higher where a sample is less likely of a known class. A threshold accepts the samples
whose score is at most as high. The true positive rate is the share of known samples that it
accepts, the false positive rate that of unknown ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ocar.errors import InputError
from ocar.metrics.accuracy import Floats


def auroc(known: npt.ArrayLike, unknown: npt.ArrayLike) -> float:
    """Area under the ROC curve: the probability that an unknown sample has the higher score.

    Equal scores count one half, so a score that says nothing has 0.5.

    Args:
        known: Scores of samples of known classes, ``(n,)``.
        unknown: Scores of other samples, ``(m,)``.
    """
    low, high = _checked("known", known), _checked("unknown", unknown)
    low = np.sort(low)
    below = np.searchsorted(low, high, side="left") + np.searchsorted(low, high, side="right")
    return float(below.mean() / (2 * len(low)))


def false_positive_rate(
    known: npt.ArrayLike, unknown: npt.ArrayLike, *, tpr: float = 0.95
) -> float:
    """Share of unknown samples that the lowest threshold accepts that accepts ``tpr`` of the known.

    Args:
        known: Scores of samples of known classes, ``(n,)``.
        unknown: Scores of other samples, ``(m,)``.
        tpr: True positive rate, in (0, 1].
    """
    if not 0 < tpr <= 1:
        raise InputError(f"Invalid {tpr=}. Must be in (0, 1].")
    low, high = _checked("known", known), _checked("unknown", unknown)
    threshold = np.quantile(low, tpr, method="inverted_cdf")
    return float((high <= threshold).mean())


def _checked(name: str, scores: npt.ArrayLike) -> Floats:
    """The scores as an array; else an ``InputError``."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values) or np.isnan(values).any():
        raise InputError(
            f"Invalid {name} scores of shape {values.shape}. Must be (n,) numbers with n > 0."
        )
    return values
