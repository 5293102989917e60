"""Validation accuracy over time from stored runs, with the spread over seeds.

Time is counted in tasks, 2.5 being the middle of the third, so that boundaries of different seeds
fall together. A run with all classes in one task is stretched over the whole of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocar.errors import InputError
from ocar.events import Evaluated
from ocar_lab.paper.figures.store import Wanted
from ocar_lab.runs import Run

Floats = npt.NDArray[np.float64]

STEPS = 50
"""Points in time a task."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One method."""

    seeds: tuple[int, ...]
    """Seeds of the runs."""

    tasks: int
    """Tasks of the benchmark, which is how long time is."""

    times: tuple[float, ...]
    """Time in tasks."""

    mean: tuple[float, ...]
    """Accuracy on the validation data of all tasks so far, mean over seeds."""

    std: tuple[float, ...]
    """Its sample standard deviation over seeds; 0 with one."""


def wanted(benchmark: str, chosen: dict[str, Sequence[Run]], *, command: str) -> Wanted:
    """What the figure is made from: stored runs of each method.

    Args:
        benchmark: Name of the benchmark.
        chosen: The runs of each method.
        command: What makes it.
    """
    return Wanted(
        settings={"benchmark": benchmark, "points of each task": STEPS},
        parts={
            label: {
                "hash": runs[0].hash,
                "seeds": sorted(run.seed for run in runs),
                "devices": sorted({run.device for run in runs}),
            }
            for label, runs in chosen.items()
        },
        command=command,
    )


def choose(runs: Sequence[Run], benchmark: str, label: str, seeds: Sequence[int]) -> list[Run]:
    """The finished runs of a method: of the configuration with the most of the seeds.

    Of several with as many, one that follows preset and protocol is taken first.

    Args:
        runs: Stored runs, of any benchmark.
        benchmark: Name of the benchmark.
        label: Name of the method, ``er-iid`` for all classes in one task.
        seeds: Seeds that are asked for; all if empty.
    """
    together: dict[str, dict[int, Run]] = {}
    for run in runs:
        if (run.benchmark, run.label) != (benchmark, label) or run.summary is None:
            continue
        if not seeds or run.seed in seeds:
            together.setdefault(run.hash, {})[run.seed] = run
    if not together:
        return []
    best = max(together.values(), key=lambda own: (len(own), not next(iter(own.values())).changed))
    return [best[seed] for seed in sorted(best)]


def make_curve(runs: Sequence[Run], *, tasks: int) -> Curve:
    """The curve of one method.

    Args:
        runs: Its runs, one a seed.
        tasks: Tasks of the benchmark.
    """
    times = np.linspace(0, tasks, tasks * STEPS + 1)[1:]
    values = np.stack([accuracy_at(times, run.history, tasks=tasks) for run in runs])
    std = values.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(times))
    return Curve(
        seeds=tuple(run.seed for run in runs),
        tasks=tasks,
        times=tuple(times.tolist()),
        mean=tuple(values.mean(0).tolist()),
        std=tuple(std.tolist()),
    )


def accuracy_at(times: Floats, history: Sequence[Evaluated], *, tasks: int) -> Floats:
    """The accuracy at some times: that of the evaluation made last, ``(n,)``.

    Args:
        times: Time in tasks, ``(n,)``; before the first evaluation that one counts.
        history: The evaluations of a run, in order.
        tasks: Tasks of the benchmark.

    Raises:
        InputError: There is no evaluation.
    """
    if not history:
        raise InputError("There is nothing to draw: a run has no evaluation.")
    index = np.searchsorted(task_times(history, tasks=tasks), times + 1e-9, side="right") - 1
    return np.array([event.accuracy for event in history])[np.maximum(index, 0)]


def task_times(history: Sequence[Evaluated], *, tasks: int) -> Floats:
    """When each evaluation was made, ``(evaluations,)``: the j-th of m in task t at t + j/m.

    Args:
        history: The evaluations of a run, in order; tasks count from 0, j from 1.
        tasks: Tasks of the benchmark, over which a run of one task is stretched.
    """
    task_of = np.array([event.task for event in history])
    times = np.empty(len(task_of))
    for task in np.unique(task_of):
        members = np.flatnonzero(task_of == task)
        times[members] = task + np.arange(1, len(members) + 1) / len(members)
    return times * tasks if task_of[-1] == 0 else times
