"""Student's quantiles and intervals against scipy, tables and what an interval promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ocar.errors import InputError
from ocar.metrics import mean_interval, student_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 100, 501])
@pytest.mark.parametrize("probability", [1e-4, 0.025, 0.3, 0.5, 0.6, 0.95, 0.975, 0.9999])
def test_quantiles_are_those_of_scipy(probability: float, freedom: int) -> None:
    expected = stats.t.ppf(probability, freedom)
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_quantiles_are_those_of_the_closed_forms() -> None:
    p = 0.975
    assert student_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-12)
    two = (2 * p - 1) * math.sqrt(2 / (1 - (2 * p - 1) ** 2))
    assert student_quantile(p, 2) == pytest.approx(two, rel=1e-12)


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_intervals_are_those_of_scipy(count: int) -> None:
    values = np.random.default_rng(count).normal(3, 2, count)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = mean_interval(values.tolist())
    assert found == pytest.approx((expected.low, expected.high), rel=1e-9)
    wide = mean_interval(values.tolist(), level=0.99)
    assert found is not None
    assert wide is not None
    assert wide.low < found.low < found.high < wide.high


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    samples = np.random.default_rng(0).normal(1, 1, (2000, 3))
    intervals = [mean_interval(sample.tolist()) for sample in samples]
    holds = np.mean([i is not None and i.low <= 1 <= i.high for i in intervals])
    assert holds == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 2000))


def test_one_measurement_has_no_interval() -> None:
    assert mean_interval([1.0]) is None
    assert mean_interval([]) is None
    assert mean_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


@pytest.mark.parametrize(("probability", "freedom"), [(0.0, 3), (1.0, 3), (0.5, 0)])
def test_quantiles_that_do_not_exist(probability: float, freedom: int) -> None:
    with pytest.raises(InputError, match="Must be"):
        student_quantile(probability, freedom)
