"""MASE and prequential error against sums written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ocar.errors import ConfigError, InputError
from ocar.metrics import PrequentialError, column_errors, mase, naive_scale

SERIES = np.random.default_rng(0).normal(size=(50, 2)).cumsum(0) * [1.0, 100.0]


@pytest.mark.parametrize("season", [1, 7])
def test_the_scale_is_the_error_of_the_naive_forecast(season: int) -> None:
    for column, scale in enumerate(naive_scale(SERIES, season=season)):
        values = SERIES[:, column]
        errors = [abs(values[t] - values[t - season]) for t in range(season, 50)]
        assert scale == pytest.approx(sum(errors) / len(errors))


def test_the_naive_forecast_has_a_mase_of_one() -> None:
    """Each column counts alike, whatever its unit."""
    scale = naive_scale(SERIES, season=3)
    assert mase(SERIES[:-3], SERIES[3:], scale=scale) == pytest.approx(1.0)
    other = SERIES * [1000.0, 0.01]
    assert mase(other[:-3], other[3:], scale=naive_scale(other, season=3)) == pytest.approx(1.0)


def test_forecasts_of_a_horizon_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 10.0, 20.0], [3.0, 4.0, 30.0, 40.0]])
    forecasts = values + torch.tensor([1.0, 3.0, 10.0, 10.0])
    assert column_errors(forecasts, values, columns=2).tolist() == [2.0, 10.0]
    assert mase(forecasts, values, scale=[4.0, 10.0]) == pytest.approx((0.5 + 1.0) / 2)


def test_prequential_error_is_the_mean_of_all_forecasts() -> None:
    error, parts = PrequentialError(), []
    assert np.isnan(error.compute())
    for size in (3, 1, 4):
        values = np.full((size, 2), 1.0)
        forecasts = values + size
        error.update(forecasts, values)
        parts += [float(size)] * (2 * size)
        assert error.compute() == pytest.approx(sum(parts) / len(parts))


def test_a_fading_error_forgets() -> None:
    error = PrequentialError(fading=0.5)
    for off in (8.0, 4.0, 2.0):
        error.update([[off]], [[0.0]])
    assert error.compute() == pytest.approx((2 + 4 / 2 + 8 / 4) / (1 + 0.5 + 0.25))


def test_mistakes() -> None:
    with pytest.raises(InputError, match=r"Columns \[1\] of the series have no scale"):
        naive_scale(SERIES * [1.0, 0.0])
    with pytest.raises(InputError, match="Invalid season=50"):
        naive_scale(SERIES, season=50)
    with pytest.raises(InputError, match=r"must be \(n, 2 · horizon\)"):
        mase(np.zeros((4, 3)), np.zeros((4, 3)), scale=[1.0, 1.0])
    with pytest.raises(ConfigError, match="Invalid fading=0"):
        PrequentialError(fading=0.0)
