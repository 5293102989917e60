"""Work in this process: one piece at a time, or several on a GPU, each in a thread and a stream.

On a GPU processes would take turns; threads with a CUDA stream each share the device.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Generator
from typing import Any

from ocar import accel
from ocar.accel.streams import share_device
from ocar_lab.experiment.executors.base import Executor, Stop, Work, WorkError, say


class Inline(Executor):
    """Does the work in the thread that asks for it."""

    def run(self, work: Work, stop: Stop) -> Generator[Any, None, None]:
        """Do a piece of work here."""
        try:
            yield from work(stop)
        except Exception as error:
            raise WorkError(say(error), traceback.format_exc()) from error


class Threads(Inline):
    """Does work on a GPU, each piece on a CUDA stream of its own.

    The first piece of work runs by itself until it has trained and evaluated. By then PyTorch has
    loaded all libraries, which fails while another thread records a CUDA graph.
    ``is_ahead(message)`` says whether that time has come.
    """

    def __init__(self, workers: int, *, is_ahead: Callable[[Any], bool]) -> None:
        self.workers, self.is_ahead = workers, is_ahead
        self._first, self._loaded = threading.Lock(), threading.Event()
        share_device(workers)

    def run(self, work: Work, stop: Stop) -> Generator[Any, None, None]:
        """Do a piece of work in this thread."""
        ahead = self._first.acquire(blocking=False)  # by the first caller, for good
        if not ahead:
            self._loaded.wait()
        try:
            if stop():
                return
            with accel.own_stream():
                for message in super().run(work, stop):
                    if ahead and self.is_ahead(message):
                        self._loaded.set()
                    yield message
        finally:
            if ahead:
                self._loaded.set()
