"""Two sets of runs side by side, paired by seed.

A seed decides the order of classes, the validation data and the first weights of every method, so
the difference of two runs of one seed is free of what these do to both.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ocar.errors import RunError
from ocar.events import Summary
from ocar.metrics import Interval, mean_interval
from ocar_lab.runs.table import Measured, Spread, spread


@dataclass(frozen=True, kw_only=True)
class Paired:
    """One metric of two sets of runs, over the seeds where both have it."""

    first: Spread
    """Of the first set."""

    second: Spread
    """Of the second set."""

    difference: float
    """Mean over seeds of second - first."""

    interval: Interval | None
    """Where the mean difference lies with 95 % confidence (Student's t); None for one pair."""

    @property
    def pairs(self) -> int:
        """How many seeds."""
        return self.first.count

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two sets of finished runs, paired by seed."""

    seeds: tuple[int, ...]
    """Seeds that both have."""

    only_first: tuple[int, ...]
    """Seeds that only the first set has; they are left out."""

    only_second: tuple[int, ...]
    """Seeds that only the second set has; they are left out."""

    metrics: Mapping[str, Paired]
    """By the name of the metric in ``Summary``."""


def compare(first: Sequence[Measured], second: Sequence[Measured]) -> Comparison:
    """Compare two sets of runs, each of one configuration; runs that are not finished do not count.

    Args:
        first: The one set.
        second: The other.

    Raises:
        RunError: The two are of different benchmarks, a set has a seed twice, or no seed is
            finished in both.
    """
    one, other = _by_seed(first), _by_seed(second)
    common = sorted(one.keys() & other.keys())
    if not common:
        raise RunError(
            f"No seed is finished in both: the first has {listed(sorted(one))}, the second "
            f"{listed(sorted(other))}."
        )
    benchmarks = {run.benchmark for run in (*first, *second)}
    if len(benchmarks) > 1:
        raise RunError(f"The runs are of {' and '.join(sorted(benchmarks))}. Must be one of them.")
    paired = {
        field.name: _paired(field.name, [(one[seed], other[seed]) for seed in common])
        for field in dataclasses.fields(Summary)
    }
    return Comparison(
        seeds=tuple(common),
        only_first=tuple(sorted(one.keys() - other.keys())),
        only_second=tuple(sorted(other.keys() - one.keys())),
        metrics={name: pair for name, pair in paired.items() if pair is not None},
    )


def listed(seeds: Sequence[int]) -> str:
    """Seeds as text; ``none`` if there are none."""
    return " ".join(map(str, seeds)) or "none"


def _by_seed(runs: Sequence[Measured]) -> dict[int, Summary]:
    finished: dict[int, Measured] = {}
    for run in runs:
        if run.summary is None:
            continue
        if run.seed in finished:
            there = finished[run.seed].path
            raise RunError(f"Seed {run.seed} is there twice: {there}, {run.path}. Give one.")
        finished[run.seed] = run
    return {seed: run.summary for seed, run in finished.items() if run.summary is not None}


def _paired(name: str, summaries: Sequence[tuple[Summary, Summary]]) -> Paired | None:
    measured = [(getattr(one, name), getattr(other, name)) for one, other in summaries]
    values = [pair for pair in measured if all(v is not None and math.isfinite(v) for v in pair)]
    if not values:
        return None
    differences = [other - one for one, other in values]
    return Paired(
        first=spread([one for one, _ in values]),
        second=spread([other for _, other in values]),
        difference=statistics.fmean(differences),
        interval=mean_interval(differences),
    )
