"""One small interface for this process, its threads, other processes and Ray clusters.

A piece of work is a function that yields messages and often asks whether to stop. An executor does
one piece of work for each thread that calls it. If the worker dies, the executor raises in that
thread, so that one piece of work is lost and no other. Work for another process and its messages
must be picklable.
"""

from __future__ import annotations

import queue
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ocar.errors import OcarError

INTERVAL = 0.1
"""Seconds to wait for a message before asking again whether to stop."""

Stop = Callable[[], bool]
"""Asked often whether to save and leave."""

Work = Callable[[Stop], Iterator[Any]]
"""A piece of work; it yields messages."""


class WorkError(OcarError):
    """A piece of work raised, or its worker died; ``details`` is the traceback, if any."""

    def __init__(self, error: str, details: str = "") -> None:
        super().__init__(error, details)
        self.error, self.details = error, details

    def __str__(self) -> str:
        return self.error


class Executor(ABC):
    """Does pieces of work; used in a ``with`` statement, which releases the workers."""

    workers: int = 1
    """Pieces of work at a time."""

    @abstractmethod
    def run(self, work: Work, stop: Stop) -> Generator[Any, None, None]:
        """Do a piece of work and yield its messages; closing the generator stops the work.

        Up to ``workers`` threads may call this at a time.

        Raises:
            WorkError: The work raised, or its worker died.
        """

    def close(self, *, abandon: bool) -> None:  # noqa: B027 (some have nothing to release)
        """Release the workers; ``abandon`` work that is under way instead of waiting for it."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(abandon=kind is not None)


def do_all(
    executor: Executor, works: Mapping[int, Work], *, stop: Stop
) -> Iterator[tuple[int, Any]]:
    """Do many pieces of work, as many at a time as the executor has workers, and close it.

    Args:
        executor: Does the work.
        works: The work, by number.
        stop: Asked often whether to stop what is under way and begin nothing more.

    Yields:
        The number of a piece of work and its message, or the ``WorkError`` that ended it.
    """
    waiting, leave = deque(works.items()), threading.Event()
    messages: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def stopping() -> bool:
        return leave.is_set() or stop()

    def work_off() -> Iterator[tuple[int, Any]]:
        while waiting and not stopping():
            job, work = waiting.popleft()
            try:
                for message in executor.run(work, stopping):
                    yield job, message
            except WorkError as error:
                yield job, error

    if executor.workers == 1:
        with executor:
            yield from work_off()
        return

    def serve() -> None:
        for message in work_off():
            messages.put(message)

    with ThreadPoolExecutor(executor.workers) as pool, executor:
        servers = [pool.submit(serve) for _ in range(min(executor.workers, len(works)))]
        try:
            while not all(server.done() for server in servers) or not messages.empty():
                try:
                    yield messages.get(timeout=INTERVAL)
                except queue.Empty:
                    continue
        finally:
            leave.set()
    for server in servers:
        server.result()


@dataclass(frozen=True)
class Over:
    """The end of a piece of work in another process, with its error if it raised."""

    error: WorkError | None = None

    def check(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise self.error


def with_end(work: Work, stop: Stop) -> Iterator[Any]:
    """The messages of a piece of work, and its end."""
    try:
        yield from work(stop)
    except Exception as error:  # noqa: BLE001 (the main process raises it)
        yield Over(WorkError(say(error), traceback.format_exc()))
    else:
        yield Over()


def say(error: BaseException) -> str:
    """An error in a line or two; with its class where the message is not meant for users."""
    text = str(error).strip()
    return text if isinstance(error, OcarError) and text else f"{type(error).__name__}: {text}"


def never() -> bool:
    """A ``Stop`` that is never true."""
    return False
