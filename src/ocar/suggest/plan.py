"""How many trials fit into some time, and on which prefixes of the stream.

Successive halving (Jamieson & Talwalkar, AISTATS 2016): every trial learns a short prefix, the best
third a longer one, the best third of those the longest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PREFIXES = (1 / 4, 1 / 2, 1.0)
"""Prefixes of the stream that trials learn, as shares of the longest."""

KEPT = 1 / 3
"""Share of the trials that go on with the next prefix."""

FINALISTS = 2
"""Trials that learn the longest prefix, at least."""

LEAST, MOST = 9, 100
"""Trials that a budget of time is to allow; with fewer the longest prefix is shortened instead."""

SHORTEST = 20
"""Batches of the longest prefix, at least, however short the time is."""

PILOT, RESERVE = 0.05, 0.1
"""Shares of the time to measure the speed, and for trials that are slower than measured."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many trials, on how many batches."""

    trials: int
    batches: int

    def prefixes(self) -> list[tuple[int, int]]:
        """The trials on each prefix, and its batches."""
        found = []
        trials = self.trials
        for share in PREFIXES:
            following = min(trials, max(FINALISTS, math.ceil(KEPT * trials)))
            if share == 1 or following < trials:  # else the prefix would decide nothing
                found.append((trials, max(1, round(share * self.batches))))
            trials = following
        return found

    @property
    def work(self) -> int:
        """Batches that all trials learn together."""
        return sum(trials * batches for trials, batches in self.prefixes())


def make_plan(batches: int, *, seconds: float, budget: float) -> Plan:
    """The most trials that fit into a budget, all in seconds, where a batch takes ``seconds``."""
    affordable = (1 - RESERVE) * budget / seconds
    plans = [Plan(trials=trials, batches=batches) for trials in range(LEAST, MOST + 1)]
    fitting = [plan for plan in plans if plan.work <= affordable]
    if fitting:
        return fitting[-1]
    share = affordable / plans[0].work
    return Plan(trials=LEAST, batches=min(batches, max(SHORTEST, int(share * batches))))
