"""How long several runs will take, and what takes the time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from ocar_lab.experiment import Message, Progress

LEAST_SECONDS = 10.0
"""Time that a run must have taken before it says what takes the time."""

LONG_SECONDS = 60.0
"""With less time left than this, there is nothing to suggest."""

SHARE = 0.2
"""Share of the time that evaluations should take at most after a suggestion."""


class TimeLeft:
    """Follows the messages of runs and estimates how long the others will take.

    A run goes on at the speed it has had. A run that has not begun takes as long as the mean of
    the same method, or of all runs if the method has none.

    Args:
        methods: The method of each run.
        workers: Runs at a time; None if unknown.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        methods: Sequence[str],
        *,
        workers: int | None = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.methods, self.workers, self.clock = methods, workers, clock
        self._began: dict[int, float] = {}
        self._latest: dict[int, Progress] = {}
        self._ended: dict[int, float] = {}  # when

    def follow(self, message: Message) -> None:
        """Take a message into account."""
        if isinstance(message, Progress):
            self._began.setdefault(message.job, self.clock())
            self._latest[message.job] = message
        else:
            self._ended[message.job] = self.clock()

    def of_run(self, job: int) -> float | None:
        """Seconds that a run will take; None if unknown."""
        if job in self._ended:
            return 0.0
        whole = self._whole(job)
        if whole is None:
            return self._like(job) if job not in self._began else None
        latest = self._latest[job]
        return whole * (1 - latest.done / latest.batches)

    def of_all(self) -> float | None:
        """Seconds that all runs will take; None if unknown."""
        each = [self.of_run(job) for job in range(len(self.methods)) if job not in self._ended]
        known = [seconds for seconds in each if seconds is not None]
        if not known or len(known) < len(each):
            return None
        return max(max(known), sum(known) / min(self.workers or len(known), len(known)))

    def _whole(self, job: int) -> float | None:
        """Seconds of a whole run at the speed that it has had."""
        latest = self._latest.get(job)
        if latest is None or latest.done <= latest.resumed or not latest.batches:
            return None
        spent = self._ended.get(job, self.clock()) - self._began[job]
        return spent / (latest.done - latest.resumed) * latest.batches

    def _like(self, job: int) -> float | None:
        """Mean seconds of whole runs of the same method, or of all if there is none."""
        known = {other: self._whole(other) for other in self._latest}
        found = {other: seconds for other, seconds in known.items() if seconds is not None}
        same = [s for other, s in found.items() if self.methods[other] == self.methods[job]]
        seconds = same or list(found.values())
        return sum(seconds) / len(seconds) if seconds else None

    def suggest_every(self, message: Progress, every: int) -> str:
        """A line that suggests fewer evaluations if they dominate a long run; else empty."""
        left, share = self.of_all(), message.evaluating
        spent = self.clock() - self._began[message.job]
        if left is None or left < LONG_SECONDS or spent < LEAST_SECONDS or not 0.5 < share < 1:
            return ""
        fewer = every * share / (1 - share) * (1 - SHARE) / SHARE
        magnitude = 10 ** math.floor(math.log10(fewer))
        rounded = next(n for n in (1, 2, 5, 10) if n * magnitude >= fewer) * magnitude
        return (
            f"Evaluation takes {share:.0%} of the time. --every {rounded} is faster; AAA and "
            "WC-Acc are then over fewer evaluations, and the runs in another folder."
        )
