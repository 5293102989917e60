"""The interval of a mean against scipy's t-test and against its coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ocar_lab.runs import mean_interval


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
