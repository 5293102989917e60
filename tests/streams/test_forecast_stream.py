"""Windows of a series: everything once, in order, and nothing of the future."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ocar
from ocar.errors import ConfigError, DataError
from ocar.streams import ForecastStream

sizes = st.integers(1, 6)


def counting(length: int) -> Tensor:
    """A column of times and one of times plus 1,000, so that a value tells when it was."""
    time = torch.arange(length, dtype=torch.float64)
    return torch.stack([time, time + 1000], dim=1)


def test_a_small_stream_by_hand() -> None:
    stream = ForecastStream(counting(9), window=3, horizon=2, every=2)
    assert len(stream) == 3
    first, second, third = stream
    assert (first.time, second.time, third.time) == (2, 4, 6)
    assert first.known is None
    assert first.x.tolist() == [[0, 1, 2, 1000, 1001, 1002], [1, 2, 3, 1001, 1002, 1003]]
    assert first.y.tolist() == [[3, 4, 1003, 1004], [4, 5, 1004, 1005]]
    assert second.known is not None
    x, y = second.known  # at time 4 the horizon of the first window alone has ended
    assert x.tolist() == [[0, 1, 2, 1000, 1001, 1002]]
    assert y.tolist() == [[3, 4, 1003, 1004]]
    assert third.known is not None
    assert third.known[1].tolist() == [[4, 5, 1004, 1005], [5, 6, 1005, 1006]]
    assert third.x[:, 2].tolist() == [6]  # a later window has no whole horizon
    assert third.y.tolist() == [[7, 8, 1007, 1008]]


@settings(max_examples=200, deadline=None)
@given(window=sizes, horizon=sizes, every=sizes, more=st.integers(0, 20))
def test_everything_is_asked_once_and_learned_at_most_once(
    window: int, horizon: int, every: int, more: int
) -> None:
    length = window + horizon + more
    stream = ForecastStream(counting(length), window=window, horizon=horizon, every=every)
    asked, learned = [], []
    for index, batch in enumerate(stream):
        assert batch.time == window - 1 + index * every
        ends = batch.x[:, window - 1]  # the newest value of the first column
        assert ends[0] == batch.time
        for end, row in zip(ends, batch.y, strict=True):
            assert row[:horizon].tolist() == [end + 1 + step for step in range(horizon)]
        asked += ends.tolist()
        if batch.known is not None:
            x, y = batch.known
            assert float(y[:, :horizon].max()) <= batch.time  # nothing of the future
            assert float(x[:, window - 1].max()) == batch.time - horizon
            learned += x[:, window - 1].tolist()
    assert asked == list(range(window - 1, length - horizon))
    assert learned == asked[: len(learned)]
    assert len(learned) >= len(asked) - horizon - every + 1


@settings(max_examples=100, deadline=None)
@given(window=sizes, horizon=sizes, every=sizes, index=st.integers(0, 8))
def test_another_future_changes_nothing_before_it(
    window: int, horizon: int, every: int, index: int
) -> None:
    series = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    options = {"window": window, "horizon": horizon, "every": every}
    batch = ForecastStream(series, **options)[index]
    changed = series.clone()
    changed[batch.time + 1 :] = float("nan")
    other = ForecastStream(changed, **options)[index]
    assert torch.equal(batch.x[0], other.x[0])
    assert (batch.known is None) == (other.known is None)
    if batch.known is not None and other.known is not None:
        assert all(map(torch.equal, batch.known, other.known))


def test_a_learner_at_a_time_knows_nothing_later() -> None:
    """Two series that part at a time: all forecasts up to it are the same to the bit."""
    series = torch.randn(80, 2, generator=torch.Generator().manual_seed(0)).cumsum(0)
    other = series.clone()
    other[61:] += 100
    said = []
    for values in (series, other):
        torch.manual_seed(0)
        model = torch.nn.Linear(16, 8)
        learner = ocar.OCAR(model, likelihood="student-t", memory_kind="reservoir", memory=50)
        found = {}
        for batch in ForecastStream(values, window=8, horizon=4, every=3):
            if batch.known is not None:
                learner.learn(*batch.known)
                found[batch.time] = learner.predict(batch.x[:1])
        said.append(found)
    same = {time: torch.equal(said[0][time], said[1][time]) for time in said[0]}
    assert all(equal == (time <= 60) for time, equal in same.items())
    assert len(set(same.values())) == 2


def test_some_columns_are_forecast() -> None:
    stream = ForecastStream(counting(9), window=3, horizon=2, targets=[1])
    assert stream[0].x.shape == (1, 6)
    assert stream[0].y.tolist() == [[1003, 1004]]
    assert [b.time for b in stream[1:3]] == [3, 4]
    assert stream[-1].time == stream[len(stream) - 1].time


@pytest.mark.parametrize(
    ("series", "options", "error", "text"),
    [
        (torch.zeros(9), {}, DataError, r"shape \(9,\)"),
        (torch.zeros(9, 2, dtype=torch.int64), {}, DataError, "int64"),
        (torch.zeros(4, 2), {}, DataError, "at least 5"),
        (torch.zeros(9, 2), {"every": 0}, ConfigError, "Invalid every=0"),
        (torch.zeros(9, 2), {"window": 0}, ConfigError, "Invalid window=0"),
        (torch.zeros(9, 2), {"horizon": 0}, ConfigError, "Invalid horizon=0"),
        (torch.zeros(9, 2), {"targets": [2]}, ConfigError, "columns from 0 to 1"),
        (torch.zeros(9, 2), {"targets": []}, ConfigError, "columns from 0 to 1"),
    ],
)
def test_mistakes(series: Tensor, options: dict, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        ForecastStream(series, **{"window": 3, "horizon": 2, **options})


def test_there_is_nothing_behind_the_end() -> None:
    with pytest.raises(IndexError, match="Batch 5 of 5"):
        ForecastStream(counting(9), window=3, horizon=2)[5]
