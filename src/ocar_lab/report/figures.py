"""The numbers in the figures of a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ocar_lab.runs import Run
from ocar_lab.runs.columns import Columns, Floats
from ocar_lab.runs.timeline import Band, band, per_stretch, task_lengths, thin, times_in_tasks

Number = float | None
"""None instead of NaN, which JSON does not have."""

POINTS = 480
"""Most points of a line."""

TASK_POINTS = 160
"""Most points of a line for one task; there are as many lines as tasks."""

LINES = 400
"""With more lines than this in a figure, each has fewer points."""

STRETCHES = 240
"""Stretches of time in a heat map and in the time of a batch."""

TASKS = "time in tasks"

REPORTED = {
    "tau": ("τ, the damping", "τ"),
    "replay_weight": ("λ, the weight of replayed samples", "weight"),
    "norm_ratio": ("Gradient norm after over before preconditioning", "ratio"),
}
"""Numbers that a learner reports: title and axis."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Mean ± standard deviation over seeds, of one method."""

    method: int  # place of the method in its section
    x: tuple[float, ...]
    mean: tuple[Number, ...]
    std: tuple[Number, ...]  # sample standard deviation; None for fewer than two seeds
    seeds: tuple[int, ...]  # number of seeds at each point


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of several views of a figure."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Lines over time; one choice is shown at a time."""

    key: str  # a short name
    title: str
    caption: str
    x: str = TASKS  # title of the horizontal axis
    y: str  # title of the vertical axis
    choices: tuple[Choice, ...]
    tasks: int = 0  # number of tasks, if x is time in tasks
    low: Number = None  # least value that there can be; bands and axis end there
    high: Number = None  # largest value that there can be
    top: Number = None  # where the axis ends at first, if a few values are far above the others


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Accuracy on each task over time, of one method, mean over seeds, in per cent."""

    method: int  # place of the method in its section
    x: tuple[float, ...]  # middle of each stretch of time, in tasks
    rows: tuple[tuple[Number, ...], ...]  # one for each task; None before it begins


@dataclass(frozen=True, kw_only=True, eq=False)
class Timed:
    """A run and the times of its evaluations."""

    run: Run
    times: Floats  # in tasks, (n,); an i.i.d. run is stretched over all tasks
    iid: bool  # whether all classes are in one task

    @property
    def columns(self) -> Columns:
        """Its evaluations."""
        return self.run.columns


Methods = Sequence[Sequence[Timed]]
"""The runs of each method of a section; a method without runs over time has none."""


def timed(methods: Sequence[Sequence[Run]]) -> tuple[list[list[Timed]], int]:
    """The runs of each method on one axis of time, and the number of tasks on it."""
    runs = [run for own in methods for run in own if len(run.columns)]
    mixed = [run for run in runs if run.config.get("iid")]
    split = [run for run in runs if not run.config.get("iid")]
    tasks = max((int(run.columns.task[-1]) + 1 for run in split), default=1)
    lengths, whole = task_lengths(split), task_lengths(mixed)
    whole = whole or ({0: sum(lengths.values())} if len(lengths) == tasks else {})

    def one(run: Run) -> Timed:
        iid, finished = bool(run.config.get("iid")), run.result is not None
        times = times_in_tasks(run.columns, finished=finished, lengths=whole if iid else lengths)
        return Timed(run=run, times=times * tasks if iid else times, iid=iid)

    return [[one(run) for run in own if len(run.columns)] for own in methods], tasks


def bands(
    methods: Methods, series: Callable[[Timed], tuple[Floats, Floats] | None]
) -> dict[int, Band]:
    """A number over time, by the place of each method that has it.

    ``series`` are the times and the numbers of a run; None if the run does not have the number.
    """
    found = {}
    for method, runs in enumerate(methods):
        pairs = [pair for own in runs if (pair := series(own)) is not None]
        if pairs:
            found[method] = band(*zip(*pairs, strict=True))
    return found


def lines(found: Mapping[int, Band], *, most: int = POINTS) -> tuple[Line, ...]:
    """Bands by method as lines to draw, each of ``most`` points; none for a band without number."""
    kept = {method: thin(own.times, own.mean, most) for method, own in found.items()}
    return tuple(
        Line(
            method=method,
            x=tuple(np.round(own.times[kept[method]], 4).tolist()),
            mean=numbers(own.mean[kept[method]]),
            std=numbers(own.std[kept[method]]),
            seeds=tuple(own.count[kept[method]].tolist()),
        )
        for method, own in found.items()
        if len(kept[method])
    )


def numbers(values: Floats) -> tuple[Number, ...]:
    """Plain numbers, to five digits of the largest; None for NaN."""
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    digits = 4 - math.floor(math.log10(largest)) if largest else 0
    return tuple(None if v != v else v for v in np.round(values, digits).tolist())


def value_lines(methods: Methods, name: str) -> tuple[Line, ...]:
    """A recorded number over time, such as ``l_p`` or ``tau``."""
    return lines(bands(methods, partial(_value, name=name)))


def _value(own: Timed, name: str) -> tuple[Floats, Floats] | None:
    values = own.columns.values
    return (own.times, values[name]) if name in values else None


def run_lines(methods: Methods) -> dict[Path, Line]:
    """The main number over time of each single run: its accuracy, or its loss in regression."""
    runs = [own for group in methods for own in group]
    most = max(20, min(TASK_POINTS, LINES * TASK_POINTS // max(1, len(runs))))
    for series in (_together, _online, partial(_value, name="l_p")):
        drawn = lines(bands([[own] for own in runs], series), most=most)
        if drawn:
            return {runs[line.method].run.path: line for line in drawn}
    return {}


def task_bands(methods: Methods, tasks: int) -> list[dict[int, Band]]:
    """For each task, the accuracy on it over time in per cent since it began, by method."""

    def series(own: Timed, task: int) -> tuple[Floats, Floats] | None:
        if own.iid or own.columns.correct.shape[1] <= task:
            return None
        values = 100 * own.columns.accuracy_on(task)
        begun = int((~np.isnan(values)).argmax())
        return own.times[begun:], values[begun:]

    several = range(tasks if tasks > 1 else 0)
    return [bands(methods, partial(series, task=task)) for task in several]


def accuracy_choices(
    methods: Methods, on_tasks: Sequence[Mapping[int, Band]]
) -> tuple[Choice, ...]:
    """Accuracy over time in per cent: on all tasks so far, on each task, and online."""
    share = min(1.0, LINES / max(1, len(on_tasks) * len(methods)))
    most = max(20, int(share * TASK_POINTS))
    found = {"All tasks so far": lines(bands(methods, _together))}
    for task, own in enumerate(on_tasks, start=1):
        found[f"Task {task}"] = lines(own, most=most)
    found["Each batch before it is learned"] = lines(bands(methods, _online))
    return tuple(Choice(title=title, lines=own) for title, own in found.items() if own)


def _together(own: Timed) -> tuple[Floats, Floats] | None:
    return (own.times, 100 * own.columns.accuracy()) if own.columns.has_counts else None


def _online(own: Timed) -> tuple[Floats, Floats] | None:
    values = own.columns.values
    if "online_correct" not in values:
        return None
    seen = np.where(values["seen"], values["seen"], math.nan)
    return own.times, 100 * values["online_correct"] / seen


def milliseconds(columns: Columns) -> Floats:
    """Time of a batch since the evaluation before, ``(n,)``."""
    seconds = np.diff(columns.seconds, prepend=0.0)
    found: Floats = 1000 * seconds / np.maximum(np.diff(columns.index, prepend=-1), 1)
    return found


def time_lines(methods: Methods, tasks: int) -> tuple[Line, ...]:
    """Milliseconds of a batch over time: the median of each stretch, for each seed."""
    each = max(1, STRETCHES // tasks)
    grid = np.arange(1, tasks * each + 1) / each

    def series(own: Timed) -> tuple[Floats, Floats]:
        spent = milliseconds(own.columns)
        medians = per_stretch(own.times, spent, each=each, count=len(grid), how="median")
        end = int(np.flatnonzero(~np.isnan(medians))[-1]) + 1
        return grid[:end], medians[:end]

    return lines(bands(methods, series))


def usual_top(drawn: Sequence[Line]) -> Number:
    """The end of an axis on which nearly all values lie; None if all lie near it."""
    pairs = [pair for line in drawn for pair in zip(line.mean, line.std, strict=True)]
    values = np.array([mean + (std or 0.0) for mean, std in pairs if mean is not None])
    if not len(values):
        return None
    usual = 1.25 * float(np.quantile(values, 0.97))
    return usual if 0 < 2 * usual < values.max() else None


def heats(on_tasks: Sequence[Mapping[int, Band]]) -> tuple[Heat, ...]:
    """Accuracy on each task over time, of each method that has been through several tasks."""
    tasks = len(on_tasks)
    each = max(1, STRETCHES // max(1, tasks))
    count = tasks * each
    x = tuple(np.round((np.arange(count) + 0.5) / each, 4).tolist())
    maps = []
    for method in on_tasks[1] if tasks > 1 else ():
        own = [found[method] for found in on_tasks if method in found]
        means = [per_stretch(b.times, b.mean, each=each, count=count, how="mean") for b in own]
        filled = [_without_gaps(mean, begin=task * each) for task, mean in enumerate(means)]
        rows = tuple(numbers(np.round(mean, 1)) for mean in filled)
        maps.append(Heat(method=method, x=x, rows=rows))
    return tuple(maps)


def _without_gaps(values: Floats, *, begin: int) -> Floats:
    """Fill each gap with the number before it, and from ``begin`` on with the first number."""
    there = np.flatnonzero(~np.isnan(values))
    filled = values.copy()
    if len(there):
        places = np.arange(begin, there[-1])
        before = np.searchsorted(there, places, side="right") - 1
        filled[places] = values[there[np.maximum(before, 0)]]
    return filled
