"""Independent work side by side on an accelerator.

The layers of a network give many small factorizations that do not depend on
each other. Recorded in a CUDA graph on several streams they run at the same
time; one after another, each would leave most of the device idle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

import torch

RECORDING = -3
"""Priority of streams that nothing but a graph is recorded on."""

LANES = 16
"""Streams to share the work out to; beyond that nothing was gained on an H200."""


@functools.cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    # PyTorch hands out few streams of each priority, again and again. These are for recording
    # alone, which is done by one thread at a time, so they have a priority of their own.
    return [torch.cuda.Stream(device, priority=RECORDING) for _ in range(LANES)]


class Lanes:
    """Runs jobs on streams beside the current one.

    Jobs of one name run one after another, all others side by side. Between :meth:`run` and
    :meth:`join` the memory that the jobs read must be kept: give it to ``run`` as ``keep``.

    Args:
        device: A CUDA device.
        costs: About how much work the jobs of each name are, in any unit.
    """

    def __init__(self, device: torch.device, costs: Mapping[str, int]) -> None:
        self._streams = _streams(device)
        self._kept: list[object] = []
        self._lane: dict[str, torch.cuda.Stream] = {}
        loads = [0] * len(self._streams)
        for name in sorted(costs, key=lambda name: -costs[name]):
            least = loads.index(min(loads))
            loads[least] += costs[name]
            self._lane[name] = self._streams[least]

    def run(self, jobs: Iterable[tuple[str, Callable[[], object]]], *, keep: object = None) -> None:
        """Start jobs after all that the current stream has been given.

        Args:
            jobs: The name of each, and what to call.
            keep: What to hold on to until :meth:`join`.
        """
        self._kept.append(keep)
        current = torch.cuda.current_stream(self._streams[0].device)
        for stream in self._streams:
            stream.wait_stream(current)
        for name, job in jobs:
            with torch.cuda.stream(self._lane[name]):
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
