"""Many runs as one table: a row for each run, and mean and spread over the seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ocar.events import Summary
from ocar_lab.optional import needed
from ocar_lab.runs.reading import Measured
from ocar_lab.runs.versions import earlier_settings

if TYPE_CHECKING:
    import polars as pl

R = TypeVar("R", bound=Measured)

METRICS = tuple(field.name for field in dataclasses.fields(Summary))
"""Names of the metrics."""


PROTOCOL = frozenset({"blurry", "max_tasks", "max_batches", "every", "splits"})
"""Settings of the protocol, as opposed to those of a method."""

NEUTRAL = frozenset({"guard", "head", "splits", "track_norms"})
"""Settings that leave the method as it is in the paper."""


def estimates_fisher(changed: Mapping[str, Any]) -> bool:
    """Whether the Fisher is the paper's, exact or sketched, but not the default."""
    root = str(changed.get("fisher", ""))
    return root == "exact" or (root.startswith("sketched(") and "independent" not in root)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A number over several seeds."""

    mean: float  #: Mean.
    std: float | None  #: Sample standard deviation (ddof 1); None for one seed.
    count: int  #: Number of seeds.


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one configuration."""

    benchmark: str  #: Name of the benchmark.
    label: str  #: Name of the method.
    hash: str  #: Hash of the configuration.
    changed: Mapping[str, Any]  #: Settings that differ from the preset.
    seeds: tuple[int, ...]  #: Seeds of the finished runs.
    unfinished: Mapping[int, str]  #: State of each other run, by seed.
    metrics: Mapping[str, Spread]  #: Each metric over the finished runs.
    devices: tuple[str, ...] = ()  #: Devices of the finished runs.

    @property
    def key(self) -> tuple[str, str, str]:
        """Benchmark, method and hash."""
        return self.benchmark, self.label, self.hash

    @property
    def is_part(self) -> bool:
        """Whether the runs saw only part of the stream and cannot be compared with whole ones."""
        return not self.changed.keys().isdisjoint(("max_tasks", "max_batches"))

    @property
    def is_papers(self) -> bool:
        """Whether the paper's numbers of the method are of the same method and protocol.

        Numbers such as the learning rate may differ, and the sketch of the Fisher. Another
        curvature, kind of damping or memory makes another method.
        """
        same = NEUTRAL | {"fisher"} if estimates_fisher(self.changed) else NEUTRAL
        fixed = PROTOCOL | {"memory"}
        same = same | earlier_settings(self.changed).keys()
        others = {name: value for name, value in self.changed.items() if name not in same}
        return all(type(v) in (int, float) and n not in fixed for n, v in others.items())


def rows(runs: Iterable[Measured]) -> list[dict[str, Any]]:
    """One row of plain values for each run; the metrics only of finished runs."""
    return [
        {
            "benchmark": run.benchmark,
            "method": run.label,
            "hash": run.hash,
            "seed": run.seed,
            "state": run.state,
            "evaluations": run.evaluated,
            "path": str(run.path),
            **({} if run.summary is None else dataclasses.asdict(run.summary)),
        }
        for run in runs
    ]


def metrics_frame(runs: Iterable[Measured]) -> pl.DataFrame:
    """The seed and the metrics of each finished run, one row each; null if not measured."""
    with needed("A table of runs", "polars", extra="cli"):
        import polars as pl
    finished = [{"seed": run.seed, **vars(run.summary)} for run in runs if run.summary is not None]
    return pl.DataFrame(finished, {"seed": pl.Int64, **dict.fromkeys(METRICS, pl.Float64)})


def spreads(frame: pl.DataFrame) -> dict[str, Spread]:
    """Mean and spread of each column that has a number."""
    mean, std, count = (
        found.row(0, named=True) for found in (frame.mean(), frame.std(), frame.count())
    )
    return {n: Spread(mean=mean[n], std=std[n], count=count[n]) for n in mean if count[n]}


def by_configuration(runs: Iterable[R]) -> list[list[R]]:
    """The runs of each configuration, in the order in which each was first met."""
    together: dict[tuple[str, str, str], list[R]] = {}
    for run in runs:
        together.setdefault(run.key, []).append(run)
    return list(together.values())


def groups(runs: Iterable[Measured]) -> list[Group]:
    """Mean and spread of each configuration, in the order in which each was first met."""
    return [_group(members) for members in by_configuration(runs)]


def _group(runs: Sequence[Measured]) -> Group:
    first = runs[0]
    finished = [run for run in runs if run.summary is not None]
    return Group(
        benchmark=first.benchmark,
        label=first.label,
        hash=first.hash,
        changed=first.changed,
        seeds=tuple(run.seed for run in finished),
        unfinished={run.seed: run.state for run in runs if run.summary is None},
        metrics=spreads(metrics_frame(finished).drop("seed")),
        devices=tuple(dict.fromkeys(run.device for run in finished if run.device)),
    )
