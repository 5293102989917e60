"""Many runs as one table: plain rows, and their mean and spread over seeds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ocar.events import Summary


class Measured(Protocol):
    """What a table asks of a run: of its folder, or of the file that keeps its result."""

    @property
    def path(self) -> Path:
        """Folder or file."""

    @property
    def benchmark(self) -> str:
        """Name of the benchmark."""

    @property
    def label(self) -> str:
        """Name of the method."""

    @property
    def hash(self) -> str:
        """What the configuration is known by."""

    @property
    def changed(self) -> Mapping[str, Any]:
        """Settings that were given other values than the preset's."""

    @property
    def seed(self) -> int:
        """The seed."""

    @property
    def device(self) -> str:
        """What it was computed on."""

    @property
    def alone(self) -> bool:
        """Whether no other run was done at the same time, as far as it says."""

    @property
    def state(self) -> str:
        """How the run stands."""

    @property
    def evaluated(self) -> int:
        """How many evaluations there are."""

    @property
    def summary(self) -> Summary | None:
        """The metrics; None if the run is not finished."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A number over several seeds."""

    mean: float
    """Mean."""

    std: float | None
    """Sample standard deviation (ddof 1); None for one seed."""

    count: int
    """Seeds."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one configuration."""

    benchmark: str
    """Name of the benchmark."""

    label: str
    """Name of the method."""

    hash: str
    """What the configuration is known by."""

    changed: Mapping[str, Any]
    """Settings that were given other values than the preset's."""

    seeds: tuple[int, ...]
    """Seeds of the finished runs."""

    unfinished: Mapping[int, str]
    """State of each run that is not finished, by seed."""

    metrics: Mapping[str, Spread]
    """Each metric over the finished runs, by its name in ``Summary``."""

    devices: tuple[str, ...] = ()
    """What the finished runs were computed on."""

    @property
    def is_part(self) -> bool:
        """Whether the runs saw a part of the stream, so that they compare with no whole one."""
        return not self.changed.keys().isdisjoint(("max_tasks", "max_batches"))


def rows(runs: Iterable[Measured]) -> list[dict[str, Any]]:
    """One row a run: what it is, how it stands, and its metrics if it is finished."""
    return [_row(run) for run in runs]


def _row(run: Measured) -> dict[str, Any]:
    metrics = {} if run.summary is None else dataclasses.asdict(run.summary)
    return {
        "benchmark": run.benchmark,
        "method": run.label,
        "hash": run.hash,
        "seed": run.seed,
        "state": run.state,
        "evaluations": run.evaluated,
        "path": str(run.path),
        **metrics,
    }


def groups(runs: Iterable[Measured]) -> list[Group]:
    """The runs by configuration, in the order in which each was first met."""
    together: dict[tuple[str, str, str], list[Measured]] = {}
    for run in runs:
        together.setdefault((run.benchmark, run.label, run.hash), []).append(run)
    return [_group(members) for members in together.values()]


def _group(runs: Sequence[Measured]) -> Group:
    finished = [run for run in runs if run.summary is not None]
    summaries = [dataclasses.asdict(run.summary) for run in finished if run.summary is not None]
    first = runs[0]
    return Group(
        benchmark=first.benchmark,
        label=first.label,
        hash=first.hash,
        changed=first.changed,
        seeds=tuple(run.seed for run in finished),
        unfinished={run.seed: run.state for run in runs if run.summary is None},
        metrics=_spreads(summaries),
        devices=tuple(dict.fromkeys(run.device for run in finished if run.device)),
    )


def _spreads(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    """Each metric that is a number, over the runs that have it."""
    names = dict.fromkeys(name for summary in summaries for name in summary)
    columns = {name: [s[name] for s in summaries if _is_number(s.get(name))] for name in names}
    return {name: spread(values) for name, values in columns.items() if values}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation."""
    return Spread(
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        count=len(values),
    )
