"""Independent work side by side on an accelerator.

The layers of a network give many small factorizations that do not depend on
each other, and the branches of a network do not either. Recorded in a CUDA graph
on several streams they run at the same time; one after another, each would leave
most of the device idle.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")

RECORDING = -3
"""Priority of a stream that nothing but a graph is recorded on: the first of all."""

BESIDE = -2
"""Priority of the streams beside it."""

LANES = 8
"""Streams to share the work out to; beyond that nothing was gained on an H200."""

SHARED = 10
"""Streams of all learners together that share a device. Each costs memory: with twice as many, five
learners on an H200 took 1 GiB more, and no less time."""

_lanes = LANES


def share_device(runs: int) -> None:
    """Use fewer streams in graphs that are recorded from now on, since so many run at once.

    Args:
        runs: How many learners share the device.
    """
    global _lanes
    _lanes = max(1, min(LANES, SHARED // runs))


@functools.cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    # PyTorch hands out few streams of each priority, again and again. These are for recording
    # alone, which is done by one thread at a time, so they have a priority of their own.
    return [torch.cuda.Stream(device, priority=BESIDE) for _ in range(LANES)]


@functools.cache
def _branch(device: torch.device) -> list[torch.cuda.Stream]:
    # Not one of the above, on which other work may wait.
    return [torch.cuda.Stream(device, priority=BESIDE)]


class Lanes:
    """Runs jobs on streams beside the current one.

    Until :meth:`join` the memory that jobs read must be kept: give it to ``run`` as ``keep``.

    Args:
        device: A CUDA device.
        streams: The streams; by default those that share out the work of a step.
    """

    def __init__(
        self, device: torch.device, streams: list[torch.cuda.Stream] | None = None
    ) -> None:
        self._device = device
        self._streams = _streams(device)[:_lanes] if streams is None else streams
        self._loads = [0] * len(self._streams)
        self._used: set[torch.cuda.Stream] = set()  # another is no part of a graph
        self._kept: list[object] = []

    def run(self, jobs: Iterable[tuple[int, Callable[[], object]]], *, keep: object = None) -> None:
        """Start jobs side by side, after all that the current stream has been given.

        Args:
            jobs: About how much work each is, in any unit, and what to call.
            keep: What to hold on to until :meth:`join`.
        """
        self._kept.append(keep)
        current = torch.cuda.current_stream(self._device)
        for stream in self._streams:
            stream.wait_stream(current)
        self._used.update(self._streams)
        loads = [0] * len(self._streams)
        for cost, job in sorted(jobs, key=lambda sized: -sized[0]):
            least = loads.index(min(loads))
            loads[least] += cost
            with torch.cuda.stream(self._streams[least]):
                job()

    def start(self, cost: int, job: Callable[[], T], *, keep: object = None) -> T:
        """Start one job beside the current stream, after all that this has been given so far.

        Args:
            cost: About how much work it is, in the unit of the other jobs that are started so.
            job: What to call.
            keep: What to hold on to until :meth:`join`.

        Returns:
            What the job returned: tensors to be read after :meth:`join`.
        """
        self._kept.append(keep)
        least = self._loads.index(min(self._loads))
        self._loads[least] += cost
        stream = self._streams[least]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        self._used.add(stream)
        with torch.cuda.stream(stream):
            return job()

    @contextmanager
    def first(self, *, keep: object = None) -> Iterator[None]:
        """Inside it the current stream is the first lane, after all that this has been given.

        Args:
            keep: What to hold on to until :meth:`join`.
        """
        self._kept.append(keep)
        stream = self._streams[0]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        self._used.add(stream)
        with torch.cuda.stream(stream):
            yield

    def run_between(self, job: Callable[[], object]) -> None:
        """Start a job that waits for all of :meth:`run` before it, and all after it wait for."""
        first, *others = self._streams
        for stream in others:
            first.wait_stream(stream)
        with torch.cuda.stream(first):
            job()
        for stream in others:
            stream.wait_stream(first)

    def join(self) -> None:
        """Let the current stream wait for all jobs."""
        current = torch.cuda.current_stream(self._device)
        for stream in self._used:
            current.wait_stream(stream)
        self._used.clear()
        self._kept.clear()


class Here:
    """In place of :class:`Lanes` where nothing is being recorded: jobs are done at once."""

    def start(self, cost: int, job: Callable[[], T], *, keep: object = None) -> T:
        """Do a job; arguments as for :meth:`Lanes.start`."""
        return job()

    def join(self) -> None:
        """There is nothing to wait for."""


def beside(device: torch.device) -> Lanes | Here:
    """Streams beside the one of a graph that is being recorded; else there are none."""
    return Lanes(device) if is_capturing(device) else Here()


class _Branches(threading.local):
    allowed = True


_branches = _Branches()


def branch(device: torch.device) -> Lanes | Here:
    """As :func:`beside`, for a branch of a network that is soon waited for."""
    beside = _branches.allowed and is_capturing(device)
    return Lanes(device, _branch(device)) if beside else Here()


@contextmanager
def one_stream() -> Iterator[None]:
    """Inside it branches are not beside each other.

    For forward passes that several columns are pulled back through at once: PyTorch cannot hand
    these from one stream to another.
    """
    before, _branches.allowed = _branches.allowed, False
    try:
        yield
    finally:
        _branches.allowed = before


def is_capturing(device: torch.device) -> bool:
    """Whether work on the device is being recorded as a graph: then nothing can be waited for."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
