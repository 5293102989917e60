"""The progress of a search: one line on standard error that is written again and again."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass

from ocar.suggest.plan import Plan
from ocar.suggest.search import Search

INTERVAL = 0.1
"""Least seconds between two versions of the line."""

COLUMNS = 80
"""Width of a terminal that does not know its own."""


class Line:
    """The line; nothing is written unless it is ``shown`` and standard error is a terminal."""

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown and sys.stderr.isatty()
        self._next = 0.0

    def show(self, text: str) -> None:
        """Replace the line, unless it was replaced a moment ago."""
        if self.shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + INTERVAL
            self._write(text)

    def keep(self, text: str) -> None:
        """Write a line that stays; the next one is replaced again."""
        if self.shown:
            self._write(text, end="\n")

    def clear(self) -> None:
        """Leave nothing behind."""
        if self.shown:
            self._write("")

    def _write(self, text: str, end: str = "") -> None:
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
        except OSError:  # a terminal that is no file
            columns = COLUMNS
        room = columns - 1
        sys.stderr.write(f"\r{' ' * room}\r{text if end else text[:room]}{end}")
        sys.stderr.flush()


def time_text(seconds: float) -> str:
    """Minutes and seconds, as ``4:05``."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02}"


def score_text(score: float, *, regression: bool) -> str:
    """An accuracy in per cent, or a squared error."""
    if math.isnan(score):
        return "diverged"
    return f"{score:.4g}" if regression else f"{score:.1%}"


class TimeOver(Exception):
    """The time of a search is over."""


@dataclass(kw_only=True)
class Watch:
    """Shows how far a search is, and ends it when its time is over."""

    search: Search
    plan: Plan
    line: Line
    end: float  #: When to end, on the monotonic clock.

    def __post_init__(self) -> None:
        self._start = time.monotonic()

    def is_used(self, share: float) -> bool:
        """Whether a share of the time has passed."""
        return time.monotonic() > self._start + share * (self.end - self._start)

    def __call__(self) -> None:
        """A trial has learned a batch.

        Raises:
            TimeOver: The time is over, and there is a trial to suggest.
        """
        now, search = time.monotonic(), self.search
        best = next(iter(search.ranked()), None)
        if best is not None and self.is_used(1.0):
            raise TimeOver
        if self.line.shown:
            rate = (now - self._start) / search.learned
            left = min(self.end - now, rate * max(0, self.plan.work - search.learned))
            known = ""
            if best is not None:
                known = f", best {score_text(best.score, regression=search.recorded.regression)}"
            self.line.show(
                f"ocar.suggest: {search.learned / self.plan.work:.0%}, {len(search.trials)} of "
                f"{self.plan.trials} trials{known}, {time_text(left)} left"
            )
