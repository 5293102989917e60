"""When to save: after so many batches, or as often as costs little."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.01
"""Part of the time that saving may take; with the last checkpoint of a short run, under 2 %."""

LEAST_SECONDS = 1.0
"""Saving more often than this wears the disk and saves nobody anything."""


class Cadence:
    """Says when the next checkpoint is due.

    Args:
        every: Batches between two; None to go by what the last one cost.
        clock: Seconds since some moment.
    """

    def __init__(
        self, every: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.every = every
        self.clock = clock
        self._batches = 0
        self._saved = clock()
        self._wait = LEAST_SECONDS

    def is_due(self, index: int) -> bool:
        """Whether to save now.

        Args:
            index: Index of the batch that is done.
        """
        if self.every is not None:
            return index + 1 - self._batches >= self.every
        return self.clock() - self._saved >= self._wait

    def note(self, index: int, *, cost: float = 0.0) -> None:
        """A checkpoint was written or read.

        Args:
            index: Index of the last batch in it.
            cost: Seconds that it took.
        """
        self._batches = index + 1
        self._saved = self.clock()
        self._wait = max(LEAST_SECONDS, cost / SHARE)
