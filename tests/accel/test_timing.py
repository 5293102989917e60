"""Seconds of learning: what is timed, what is not, and when it is known."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from ocar.accel.timing import Stopwatch


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_stretches_add_up_and_what_is_between_them_does_not_count(clock, device) -> None:
    watch = Stopwatch(device)
    assert not watch.asynchronous
    assert watch.seconds(watch.lap()) == 0.0
    for stretch in (1.0, 2.0, 4.0):
        clock.now += 1000.0
        with watch.running():
            clock.now += stretch
    assert watch.seconds(watch.lap()) == 7.0
    assert watch.seconds(watch.lap()) == 7.0  # asked again


def test_a_moment_counts_what_was_done_by_then(clock) -> None:
    """Moments are taken as the work goes on, and asked for later."""
    watch, laps = Stopwatch(None), []
    laps.append(watch.lap())
    for stretch in (1.0, 2.0, 4.0):
        with watch.running():
            clock.now += stretch
        laps.append(watch.lap())
    assert [watch.seconds(lap) for lap in laps] == [0.0, 1.0, 3.0, 7.0]


def test_asking_while_the_work_goes_on(clock) -> None:
    watch = Stopwatch(None)
    with watch.running():
        clock.now += 1.0
    first = watch.lap()
    assert watch.seconds(first) == 1.0
    with watch.running():
        clock.now += 2.0
        assert watch.seconds(watch.lap()) == 1.0  # a stretch counts once it is over
    assert watch.seconds(watch.lap()) == 3.0


def test_it_begins_with_the_seconds_of_a_run_that_goes_on(clock) -> None:
    watch = Stopwatch(None, before=10.0)
    assert watch.seconds(watch.lap()) == 10.0
    with watch.running():
        clock.now += 0.5
    assert watch.seconds(watch.lap()) == 10.5


def test_work_that_fails_is_not_a_stretch(clock) -> None:
    watch = Stopwatch(None)

    def fail() -> None:
        with watch.running():
            clock.now += 5.0
            raise KeyError("of the user's")

    with pytest.raises(KeyError, match="of the user's"):
        fail()
    with watch.running():
        clock.now += 1.0
    assert watch.seconds(watch.lap()) == 1.0


def test_real_time_passes() -> None:
    watch, begun = Stopwatch(None), time.perf_counter()
    with watch.running():
        time.sleep(0.02)
    time.sleep(0.05)
    assert 0.02 <= watch.seconds(watch.lap()) <= time.perf_counter() - begun - 0.05


class Event:
    """What a CUDA event does, on a pretended device whose work takes a second a piece."""

    device_time = 0.0
    waited: list[float] = []  # noqa: RUF012 (shared on purpose)

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at: float | None = None

    def record(self, stream: object) -> None:
        self.at = Event.device_time

    def synchronize(self) -> None:
        assert self.at is not None
        Event.waited.append(self.at)

    def elapsed_time(self, end: Event) -> float:
        assert self.at is not None
        assert end.at is not None
        return 1000 * (end.at - self.at)  # milliseconds


def test_on_a_gpu_the_device_is_timed_and_nothing_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    Event.device_time, Event.waited = 0.0, []
    watch, laps = Stopwatch(torch.device("cuda"), before=1.0), []
    assert watch.asynchronous
    for stretch in (1.0, 2.0):
        Event.device_time += 50.0
        with watch.running():
            Event.device_time += stretch
        laps.append(watch.lap())
    assert Event.waited == []
    assert watch.seconds(laps[0]) == 2.0
    assert Event.waited == [51.0]  # only for what was asked
    assert watch.seconds(laps[1]) == 4.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_real_gpu() -> None:
    watch = Stopwatch(torch.device("cuda"))
    x = torch.randn(4000, 4000, device="cuda")
    x @ x
    torch.cuda.synchronize()
    begun = time.perf_counter()
    with watch.running():
        for _ in range(50):
            x @ x
    seconds = watch.seconds(watch.lap())
    assert 0 < seconds <= time.perf_counter() - begun
