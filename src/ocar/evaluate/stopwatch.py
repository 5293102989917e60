"""Seconds that learning takes, also where a device does it later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Lap:
    """A moment: all stretches that had been timed by then."""

    stretches: int
    """How many."""

    seconds: float | None = None
    """Their seconds, where these are known already."""


class Stopwatch:
    """Times stretches of work, and leaves out what is between them.

    On a GPU the stretch ends when the device has done the work; nothing is waited for until
    :meth:`seconds` is asked.

    Args:
        device: Where the work is done; None for the host.
        before: Seconds to begin with.
    """

    def __init__(self, device: torch.device | None, before: float = 0.0) -> None:
        self.on_cuda = device is not None and device.type == "cuda"
        self._device = device
        self._total = before
        self._known = 0  # stretches in the total
        self._stretches = 0
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time what is inside."""
        if self.on_cuda:
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
        self._stretches += 1

    def lap(self) -> Lap:
        """This moment."""
        return Lap(self._stretches, None if self.on_cuda else self._total)

    def seconds(self, lap: Lap) -> float:
        """Seconds of all stretches up to a moment; moments are asked for in their order."""
        if lap.seconds is not None:
            return lap.seconds
        count = lap.stretches - self._known
        for start, end in self._pending[:count]:
            end.synchronize()
            self._total += start.elapsed_time(end) / 1000
        del self._pending[:count]
        self._known = lap.stretches
        return self._total
