"""One small interface for whoever does the work.

A piece of work is a function that is given a way to ask whether it should stop, and that yields
messages. An executor begins pieces of work, passes on what they say, and says when each is over,
also when the process or the machine that did it is gone: that costs this piece of work and no
other. What is not done here has to be picklable, and so have its messages.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ocar.errors import OcarError

INTERVAL = 0.1
"""Seconds that an executor waits for messages before it lets its user look around."""

Stop = Callable[[], bool]
"""Asked often whether to save what is worth saving and leave."""

Work = Callable[[Stop], Iterator[Any]]
"""A piece of work."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """A piece of work has said something."""

    job: int
    """Which one, by the number that it was submitted with."""

    message: Any
    """What it said."""


@dataclass(frozen=True, kw_only=True)
class Over:
    """Nothing more comes from a piece of work."""

    job: int
    """Which one, by the number that it was submitted with."""

    error: str = ""
    """Why, in a line or two, if it did not end by itself: it raised, or its worker has died."""

    details: str = ""
    """The traceback, if it raised."""


Heard = Said | Over


class Executor(ABC):
    """Does pieces of work; to be used in a ``with`` statement, which ends what is left of them."""

    @property
    @abstractmethod
    def room(self) -> int:
        """How many more can be begun now."""

    @abstractmethod
    def submit(self, job: int, work: Work) -> None:
        """Begin a piece of work; only while there is room.

        Args:
            job: A number to know it by, which no other has that is not over.
            work: What to do.
        """

    @abstractmethod
    def ask_to_stop(self, job: int) -> None:
        """Ask a piece of work to stop; one that is over, or about to be, does not mind."""

    @abstractmethod
    def listen(self) -> Sequence[Heard]:
        """What has been heard; waits for it, but not much longer than ``INTERVAL``."""

    @abstractmethod
    def close(self, *, abandon: bool) -> None:
        """Let go of the workers.

        Args:
            abandon: Do not wait for work that is under way.
        """

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(abandon=kind is not None)


def do_all(executor: Executor, works: Mapping[int, Work], *, stop: Stop) -> Iterator[Heard]:
    """Do many pieces of work, as many at a time as there is room for.

    Args:
        executor: Who does them.
        works: What to do, by number.
        stop: Asked often whether to stop what is under way and begin no more.

    Yields:
        All that is heard.
    """
    waiting, running = deque(works), set[int]()
    stopping = False
    with executor:
        while waiting or running:
            if not stopping and stop():
                stopping = True
                waiting.clear()
                for job in running:
                    executor.ask_to_stop(job)
            while waiting and executor.room > 0:
                job = waiting.popleft()
                running.add(job)
                executor.submit(job, works[job])
            for heard in executor.listen():
                if isinstance(heard, Over):
                    running.discard(heard.job)
                yield heard


def say(error: BaseException) -> str:
    """An error in a line or two; the kind of it only where the message alone would not do."""
    text = str(error).strip()
    return text if isinstance(error, OcarError) and text else f"{type(error).__name__}: {text}"


def follow(job: int, work: Work, stop: Stop) -> Generator[Heard, None, None]:
    """Do a piece of work here.

    Args:
        job: Its number.
        work: What to do.
        stop: What it is to ask.

    Yields:
        What it says, and its end.
    """
    try:
        for message in work(stop):
            yield Said(job=job, message=message)
    except Exception as error:  # noqa: BLE001 (whatever it is, the others go on)
        yield Over(job=job, error=say(error), details=traceback.format_exc())
    else:
        yield Over(job=job)


def never() -> bool:
    """Nobody asks to stop."""
    return False
