"""Independent work on parallel CUDA streams while a CUDA graph is recorded.

The batches are small: one kernel leaves most of a GPU idle. Work that does not depend on each
other is recorded on several streams, so that the graph runs it at the same time. Outside a
recording the host cannot launch kernels fast enough for that, and the jobs run one after another.

PyTorch gives freed memory to the next who asks on the stream that it was made on, in the order of
the host's calls, whatever other streams still read. Three rules make this safe:

* Parallel work is recorded before what the current stream does next, so that it cannot get memory
  that this frees.
* A job frees nothing that it did not make itself.
* Streams that were used inside a job are free for others only after the job has joined.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")

RECORDING_PRIORITY = -3
"""Priority of the stream that a graph is recorded on: the highest."""

PARALLEL_PRIORITY = -2
"""Priority of the streams in parallel to it."""

STREAMS = 8
"""Parallel streams of one device; more gained nothing on an H200."""

SHARED_STREAMS = 10
"""Parallel streams of all learners on one device. Each stream holds memory of its own: twice as
many took 1 GiB more for five learners on an H200, and saved no time."""

_limit = STREAMS


def is_recording() -> bool:
    """Whether the current stream is being recorded: then nothing may wait for the device."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def share_device(learners: int) -> None:
    """Use fewer parallel streams in future recordings, because several learners share a device."""
    global _limit
    _limit = max(1, min(STREAMS, SHARED_STREAMS // learners))


@functools.cache
def _all(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    # PyTorch reuses few streams of each priority, so these have a priority of their own.
    return tuple(torch.cuda.Stream(device, priority=PARALLEL_PRIORITY) for _ in range(STREAMS))


@functools.cache
def _free(device: torch.device) -> list[torch.cuda.Stream]:
    return list(_all(device))  # one thread records at a time, so the list needs no lock


_used_inside: dict[torch.cuda.Stream, list[torch.cuda.Stream]] = {}
"""For each parallel stream in use, the streams that its work has used and may use again."""


def free_all(device: torch.device) -> None:
    """Give all parallel streams back, after a recording that failed."""
    _used_inside.clear()
    _free(device)[:] = _all(device)


class _Branches(threading.local):
    allowed = True


_branches = _Branches()


def parallel(*jobs: Callable[[], Any]) -> list[Any]:
    """Run independent jobs: in parallel inside a recording, one after another elsewhere.

    The first job runs on the current stream, and is called last. Calls may be nested.

    Args:
        *jobs: Functions without arguments. A tensor that a job reads must be referenced by it, so
            that its memory is not reused before all jobs are done.

    Returns:
        What the jobs returned, in their order.
    """
    first, *others = jobs
    if not others or not _branches.allowed or not is_recording():
        results = [job() for job in others]
        return [first(), *results]
    sides = [Side() for _ in others]
    results = [side.run(job) for side, job in zip(sides, others, strict=True)]
    results.insert(0, first())
    for side in sides:
        side.join()
    return results


class Side:
    """Work in parallel to what the current stream does next.

    Call :meth:`run` at once, before this work. Outside a recording, and where no stream is free,
    the job runs on the current stream.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        if is_recording():
            current = torch.cuda.current_stream()
            own, free = _used_inside.get(current, []), _free(current.device)
            if own or len(free) > STREAMS - _limit:
                self._stream = (own or free).pop()
                self._stream.wait_stream(current)
                _used_inside[self._stream] = []

    def run(self, job: Callable[[], T]) -> T:
        """Run a job; its results may be read after :meth:`wait`."""
        if self._stream is None:
            return job()
        with torch.cuda.stream(self._stream):
            return job()

    def wait(self) -> None:
        """Let the current stream wait for the work so far."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def join(self) -> None:
        """Wait, and give the stream back: no more work follows."""
        self.wait()
        if self._stream is not None:
            free = _used_inside.get(torch.cuda.current_stream(), _free(self._stream.device))
            free += [*_used_inside.pop(self._stream), self._stream]
            self._stream = None


@contextmanager
def one_stream() -> Iterator[None]:
    """Inside it :func:`parallel` runs jobs one after another.

    For forward passes with a batched backward pass: PyTorch cannot hand batched gradients from one
    stream to another.
    """
    before, _branches.allowed = _branches.allowed, False
    try:
        yield
    finally:
        _branches.allowed = before


class Fence:
    """Keeps the reads and writes of some tensors by several threads apart.

    On a GPU the host only starts reads and writes. Each leaves an event behind that the other waits
    for. Elsewhere nothing needs to wait.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._written = torch.cuda.Event() if device.type == "cuda" else None
        self._reads: list[torch.cuda.Event] = []

    def before_write(self) -> None:
        """Let the current stream wait for all reads that were started."""
        for event in self._reads:
            event.wait(torch.cuda.current_stream(self._device))
        self._reads.clear()

    def after_write(self) -> None:
        """A write was started."""
        if self._written is not None:
            self._written.record(torch.cuda.current_stream(self._device))

    def before_read(self) -> None:
        """Let the current stream wait for the last write."""
        if self._written is not None:
            self._written.wait(torch.cuda.current_stream(self._device))

    def after_read(self) -> None:
        """A read was started."""
        if self._written is not None:
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self._device))
            self._reads = [event for event in self._reads if not event.query()] + [done]

    def finish(self) -> None:
        """Let the host wait for all reads, before the memory is given back."""
        for event in self._reads:
            event.synchronize()
