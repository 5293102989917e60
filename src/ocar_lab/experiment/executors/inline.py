"""One piece of work at a time, in this process."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ocar_lab.experiment.executors.base import Executor, Heard, Over, Stop, Work, follow, never


class Inline(Executor):
    """Does the work while it is listened to.

    Args:
        stop: Also asked whether to stop, in the middle of the work.
    """

    def __init__(self, *, stop: Stop = never) -> None:
        self._stop = stop
        self._job: int | None = None
        self._events: Generator[Heard, None, None] | None = None
        self._asked = False

    @property
    def room(self) -> int:
        """One, if nothing is under way."""
        return 1 if self._job is None else 0

    def submit(self, job: int, work: Work) -> None:
        """Get ready to do a piece of work."""
        self._job, self._asked = job, False
        self._events = follow(job, work, lambda: self._asked or self._stop())

    def ask_to_stop(self, job: int) -> None:
        """The work hears of it when it asks."""
        self._asked = self._asked or job == self._job

    def listen(self) -> Sequence[Heard]:
        """Work until the next message."""
        if self._events is None:
            return []
        heard = next(self._events)
        if isinstance(heard, Over):
            self._job = self._events = None
        return [heard]

    def close(self, *, abandon: bool) -> None:
        """Leave what is under way."""
        if self._events is not None:
            self._events.close()
        self._job = self._events = None
