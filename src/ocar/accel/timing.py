"""Time the work of a device without waiting for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch


class Lap(NamedTuple):
    """A point in time: the intervals timed so far, and their seconds if these are known."""

    intervals: int
    seconds: float | None


class Stopwatch:
    """Adds up the seconds of timed intervals to those ``before``.

    On a GPU an interval ends when the device has done the work. Only :meth:`seconds` waits.

    Attributes:
        asynchronous: Whether calls return before the device has done their work.
    """

    def __init__(self, device: torch.device | None, before: float = 0.0) -> None:
        self.asynchronous = device is not None and device.type == "cuda"
        self._device = device
        self._total = before
        self._intervals = 0
        self._added = 0  # intervals in the total
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the body, unless it raises."""
        if self.asynchronous:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            stream = torch.cuda.current_stream(self._device)
            start.record(stream)
            yield
            end.record(stream)
            self._pending.append((start, end))
        else:
            begun = time.perf_counter()
            yield
            self._total += time.perf_counter() - begun
        self._intervals += 1

    def lap(self) -> Lap:
        """The current point in time."""
        return Lap(self._intervals, None if self.asynchronous else self._total)

    def seconds(self, lap: Lap) -> float:
        """Seconds of all intervals up to a lap. Laps must be given in their order."""
        if lap.seconds is not None:
            return lap.seconds
        count = lap.intervals - self._added
        for start, end in self._pending[:count]:
            end.synchronize()
            self._total += start.elapsed_time(end) / 1000
        del self._pending[:count]
        self._added = lap.intervals
        return self._total
