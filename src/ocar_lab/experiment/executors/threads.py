"""Several pieces of work on one GPU: threads of this process, each with a CUDA stream of its own.

Processes would only take turns on the device.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ocar.accel.streams import share_device
from ocar_lab.experiment.executors.base import (
    INTERVAL,
    Executor,
    Heard,
    Over,
    Said,
    Stop,
    Work,
    follow,
    never,
)


class Threads(Executor):
    """Does work on a GPU, each piece on a stream of its own, so that they share it.

    The first goes ahead until it has done all kinds of things once. By then PyTorch has loaded what
    they all need, which does not go well while another thread records a graph.

    Args:
        workers: How many at a time.
        is_ahead: Whether a message shows that the first has done all kinds of things.
        stop: Also asked whether to stop, in the middle of the work.
    """

    def __init__(
        self, workers: int, *, is_ahead: Callable[[Any], bool], stop: Stop = never
    ) -> None:
        self.workers = workers
        self.is_ahead = is_ahead
        self._stop = stop
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._asked: dict[int, threading.Event] = {}
        self._abandoned, self._loaded = threading.Event(), threading.Event()
        self._first: int | None = None
        self._pool = ThreadPoolExecutor(workers)
        share_device(workers)

    @property
    def room(self) -> int:
        """Threads that have nothing to do."""
        return self.workers - len(self._asked)

    def submit(self, job: int, work: Work) -> None:
        """Begin a piece of work in a thread."""
        ahead = self._first is None
        if ahead:
            self._first = job
        self._asked[job] = asked = threading.Event()
        self._pool.submit(self._follow, job, work, asked, ahead=ahead)

    def ask_to_stop(self, job: int) -> None:
        """The work hears of it when it asks."""
        if job in self._asked:
            self._asked[job].set()

    def listen(self) -> Sequence[Heard]:
        """The next message of any."""
        try:
            heard = self._heard.get(timeout=INTERVAL)
        except queue.Empty:
            return []
        if isinstance(heard, Over):
            del self._asked[heard.job]
        return [heard]

    def close(self, *, abandon: bool) -> None:
        """Ask all threads to stop and wait for them; they cannot be left behind."""
        self._abandoned.set()
        self._pool.shutdown(cancel_futures=True)

    def _follow(self, job: int, work: Work, asked: threading.Event, *, ahead: bool) -> None:
        def stop() -> bool:
            return asked.is_set() or self._abandoned.is_set() or self._stop()

        if not ahead:
            self._loaded.wait()
        try:
            if stop():
                self._heard.put(Over(job=job))
                return
            with torch.cuda.stream(torch.cuda.Stream()):
                for heard in follow(job, work, stop):
                    self._heard.put(heard)
                    if ahead and isinstance(heard, Said) and self.is_ahead(heard.message):
                        self._loaded.set()
        except BaseException as error:
            self._heard.put(Over(job=job, error=f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._loaded.set()
