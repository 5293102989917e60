"""Independent work side by side on an accelerator.

The layers of a network give many small factorizations that do not depend on
each other. Recorded in a CUDA graph on several streams they run at the same
time; one after another, each would leave most of the device idle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch

LANES = 8
"""Streams to share the work out to; more gained nothing in measurements."""


@functools.cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    # PyTorch hands out few streams, again and again. These are used in recording alone, which is
    # done by one thread at a time, and have a priority that no other part of the package asks for.
    return [torch.cuda.Stream(device, priority=-1) for _ in range(LANES)]


class Lanes:
    """Runs jobs on streams beside the current one.

    Between :meth:`run` and :meth:`join` the memory that the jobs read must be kept: give it to
    ``run`` as ``keep``.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._streams = _streams(device)
        self._kept: list[object] = []

    def run(self, jobs: Iterable[tuple[int, Callable[[], object]]], *, keep: object = None) -> None:
        """Start jobs after all that the current stream has been given.

        Args:
            jobs: About how long each takes, in any unit, and what to call.
            keep: What to hold on to until :meth:`join`.
        """
        self._kept.append(keep)
        current = torch.cuda.current_stream(self._streams[0].device)
        for stream in self._streams:
            stream.wait_stream(current)
        loads = [0] * len(self._streams)
        for cost, job in sorted(jobs, key=lambda pair: -pair[0]):
            lane = loads.index(min(loads))
            loads[lane] += cost
            with torch.cuda.stream(self._streams[lane]):
                job()

    def join(self) -> None:
        """Let the current stream wait for all jobs."""
        current = torch.cuda.current_stream(self._streams[0].device)
        for stream in self._streams:
            current.wait_stream(stream)
        self._kept.clear()


def is_capturing(device: torch.device) -> bool:
    """Whether work on the device is being recorded as a graph: then nothing can be waited for."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
