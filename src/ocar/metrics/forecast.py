"""Errors of forecasts.

MASE is the mean absolute scaled error of Hyndman & Koehler, "Another look at measures of forecast
accuracy", International Journal of Forecasting 22 (2006): the mean absolute error of a column over
that of the naive forecast, which repeats the value of m steps before,

    MASE = mean |f − y| / mean |y_t − y_{t−m}|,

averaged over the columns; m = 1 or the length of a season. They take the scale from the training
data. An online stream has none, so here the caller says which part of the series it is of: mostly
the part that is forecast. The naive forecast looks one step or one season ahead. So a MASE of 1 at
a longer horizon is better than it seems, and only figures with the same m, horizon and part of the
series can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocar.config import require_range
from ocar.errors import InputError
from ocar.metrics.accuracy import Floats


def naive_scale(series: npt.ArrayLike, *, season: int = 1) -> Floats:
    """Mean absolute error of the naive forecast of each column, ``(columns,)``.

    Args:
        series: Values ``(time, columns)``.
        season: m: the naive forecast of a value is the value m steps before.

    Raises:
        InputError: A column never changes, or the series is too short.
    """
    values = np.asarray(series, dtype=np.float64)
    if values.ndim != 2 or not 1 <= season < len(values):
        raise InputError(
            f"Invalid {season=} for a series of shape {values.shape}. The series must be "
            "(time, columns), with more than season values a column."
        )
    scale: Floats = np.abs(values[season:] - values[:-season]).mean(axis=0)
    if not (scale > 0).all():
        same = np.flatnonzero(~(scale > 0)).tolist()
        raise InputError(f"Columns {same} of the series have no scale: they are constant or NaN.")
    return scale


def column_errors(forecasts: npt.ArrayLike, values: npt.ArrayLike, *, columns: int) -> Floats:
    """Mean absolute error of each column, ``(columns,)``.

    Args:
        forecasts: Forecasts ``(n, columns · horizon)``, one column after another.
        values: What followed, of the same shape.
        columns: Columns that were forecast.
    """
    given, truth = (np.asarray(a, dtype=np.float64) for a in (forecasts, values))
    if given.shape != truth.shape or given.ndim != 2 or given.shape[1] % columns or not len(given):
        raise InputError(
            f"Invalid forecasts of shape {given.shape} for values of shape {truth.shape}. Both "
            f"must be (n, {columns} · horizon) with n > 0."
        )
    errors: Floats = np.abs(given - truth).reshape(len(given), columns, -1).mean(axis=(0, 2))
    return errors


def mase(forecasts: npt.ArrayLike, values: npt.ArrayLike, *, scale: npt.ArrayLike) -> float:
    """Mean absolute scaled error: that of each column over its scale, averaged.

    Args:
        forecasts: Forecasts ``(n, columns · horizon)``, one column after another.
        values: What followed, of the same shape.
        scale: What :func:`naive_scale` gave for the columns that were forecast.
    """
    scales = np.asarray(scale, dtype=np.float64)
    return float((column_errors(forecasts, values, columns=len(scales)) / scales).mean())


@dataclass
class PrequentialError:
    """Mean absolute error so far of forecasts that were made before their values were learned.

    Dawid, "Statistical theory: the prequential approach" (1984). With ``fading`` below 1 it is that
    of recent forecasts: Gama, Sebastião & Rodrigues, "On evaluating stream learning algorithms"
    (2013). Divide forecasts and values by their :func:`naive_scale` for the MASE so far.
    """

    fading: float = 1.0  #: What each update multiplies the weight of earlier forecasts with.
    total: float = 0.0  #: Weighted sum of absolute errors.
    weight: float = 0.0  #: Weight of the forecasts so far.

    def __post_init__(self) -> None:
        require_range(self, "in (0, 1]", "fading")

    def update(self, forecasts: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Add forecasts ``(n, outputs)`` and what followed."""
        errors = np.abs(np.asarray(forecasts, np.float64) - np.asarray(values, np.float64))
        self.total = self.fading * self.total + float(errors.sum())
        self.weight = self.fading * self.weight + errors.size

    def compute(self) -> float:
        """The error; NaN without forecasts."""
        return self.total / self.weight if self.weight else float("nan")
