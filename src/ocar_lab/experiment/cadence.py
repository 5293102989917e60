"""When to save: after a number of batches, or as often as costs little."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.01
"""Share of the time that saving may take; with the last checkpoint of a short run, under 2 %."""

LEAST_SECONDS = 1.0
"""Least time between two checkpoints."""


class Cadence:
    """Decides when the next checkpoint is due.

    Args:
        every: Batches between two checkpoints; None to decide by the cost of the last one.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, every: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.every, self.clock = every, clock
        self._batches = 0
        self._saved, self._wait = clock(), LEAST_SECONDS

    def is_due(self, index: int) -> bool:
        """Whether to save after the batch with this index."""
        if self.every is not None:
            return index + 1 - self._batches >= self.every
        return self.clock() - self._saved >= self._wait

    def note(self, index: int, *, cost: float = 0.0) -> None:
        """Note a checkpoint up to the batch ``index`` that was read, or written in ``cost`` s."""
        self._batches = index + 1
        self._saved, self._wait = self.clock(), max(LEAST_SECONDS, cost / SHARE)
