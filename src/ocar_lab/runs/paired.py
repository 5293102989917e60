"""Two sets of runs, paired by seed.

A seed determines the order of classes, the validation data and the first weights of every method.
The difference of two runs with the same seed is free of their effect.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ocar.errors import RunError
from ocar_lab.optional import needed
from ocar_lab.runs.reading import Measured
from ocar_lab.runs.table import METRICS, Spread, metrics_frame, spreads


class Interval(NamedTuple):
    """The ends of a confidence interval."""

    low: float
    high: float


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> Interval | None:
    """Student's confidence interval of a mean: mean ± t · s / √n, with n - 1 degrees of freedom.

    The values are independent measurements; fewer than two have no spread and no interval. Such
    an interval contains the true mean with probability ``level``.
    """
    if len(values) < 2:
        return None
    with needed("An interval", "scipy", extra="cli"):
        from scipy.special import stdtrit  # Student's quantile; scipy.stats takes 1 s to import
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + level) / 2)) * error
    return Interval(mean - half, mean + half)


@dataclass(frozen=True, kw_only=True)
class Paired:
    """One metric of two sets of runs, over the seeds where both have it."""

    first: Spread  #: Of the first set.
    second: Spread  #: Of the second set.
    difference: float  #: Mean over seeds of second - first.
    interval: Interval | None  #: 95 % interval of that mean (Student's t); None for one pair.

    @property
    def pairs(self) -> int:
        """Number of seeds."""
        return self.first.count

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two sets of finished runs, paired by seed."""

    seeds: tuple[int, ...]  #: Seeds in both sets.
    only_first: tuple[int, ...]  #: Seeds in the first set only, which are left out.
    only_second: tuple[int, ...]  #: Seeds in the second set only, which are left out.
    metrics: Mapping[str, Paired]  #: By the name of the metric in ``Summary``.


def compare(first: Sequence[Measured], second: Sequence[Measured]) -> Comparison:
    """Compare two sets of runs, each of one configuration; unfinished runs do not count.

    Raises:
        RunError: The sets are of different benchmarks or splits, a set has a seed twice, or no seed
            is finished in both.
    """
    sides = [_finished_seeds(runs) for runs in (first, second)]
    common = sides[0] & sides[1]
    if not common:
        raise RunError(
            f"No seed is finished in both: the first has {listed(sides[0])}, the second "
            f"{listed(sides[1])}."
        )
    benchmarks = {run.benchmark for run in (*first, *second)}
    if len(benchmarks) > 1:
        raise RunError(f"The runs are of {' and '.join(sorted(benchmarks))}. Must be one of them.")
    splits = {run.splits for run in (*first, *second)}
    if len(splits) > 1:
        raise RunError(
            f"The runs have {' and '.join(sorted(splits))} splits: a seed has another class order "
            "and other validation data in each. Must be one of them."
        )
    both = metrics_frame(first).join(metrics_frame(second), on="seed", suffix=" of second")
    metrics = {}
    for name in METRICS:
        values = both.select(first=name, second=f"{name} of second").drop_nulls().drop_nans()
        if len(values):
            differences = (values["second"] - values["first"]).to_list()
            metrics[name] = Paired(
                **spreads(values),
                difference=statistics.fmean(differences),
                interval=mean_interval(differences),
            )
    return Comparison(
        seeds=tuple(sorted(common)),
        only_first=tuple(sorted(sides[0] - common)),
        only_second=tuple(sorted(sides[1] - common)),
        metrics=metrics,
    )


def listed(seeds: Iterable[int]) -> str:
    """Seeds as text; ``none`` if there are none."""
    return " ".join(map(str, sorted(seeds))) or "none"


def _finished_seeds(runs: Sequence[Measured]) -> set[int]:
    finished: dict[int, Path] = {}
    for run in runs:
        if run.summary is None:
            continue
        if run.seed in finished:
            places = f"{finished[run.seed]}, {run.path}"
            raise RunError(f"Seed {run.seed} is there twice: {places}. Give one.")
        finished[run.seed] = run.path
    return set(finished)
