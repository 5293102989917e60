"""The numbers in the figures of a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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


def line(method: int, found: Band, *, most: int = POINTS) -> list[Line]:
    """A band as a line to draw; none if the band has no number.

    Args:
        method: Place of the method.
        found: The band, over time in tasks.
        most: Most points, see :func:`ocar_lab.runs.timeline.thin`.
    """
    kept = thin(found.times, found.mean, most)
    if not len(kept):
        return []
    return [
        Line(
            method=method,
            x=tuple(np.round(found.times[kept], 4).tolist()),
            mean=numbers(found.mean[kept]),
            std=numbers(found.std[kept]),
            seeds=tuple(found.count[kept].tolist()),
        )
    ]


def numbers(values: Floats) -> tuple[Number, ...]:
    """Plain numbers, to five digits of the largest; None for NaN."""
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    digits = 4 - math.floor(math.log10(largest)) if largest else 0
    return tuple(None if v != v else v for v in np.round(values, digits).tolist())


def lines_of(methods: Methods, number: Callable[[Timed], Floats | None]) -> tuple[Line, ...]:
    """A number over time, of each method that has it.

    Args:
        methods: The runs of each method.
        number: Computes the number of a run, ``(n,)``; None if the run does not have it.
    """
    found: list[Line] = []
    for method, runs in enumerate(methods):
        pairs = [(own.times, values) for own in runs if (values := number(own)) is not None]
        if pairs:
            found += line(method, band(*zip(*pairs, strict=True)))
    return tuple(found)


def value_lines(methods: Methods, name: str) -> tuple[Line, ...]:
    """A recorded number over time, such as ``l_p`` or ``tau``."""
    return lines_of(methods, lambda own: own.columns.values.get(name))


def task_bands(methods: Methods, tasks: int) -> list[dict[int, Band]]:
    """For each task, the accuracy on it over time in per cent, by method."""
    found: list[dict[int, Band]] = []
    for task in range(tasks if tasks > 1 else 0):
        bands = {}
        for method, runs in enumerate(methods):
            own = [one for one in runs if not one.iid and one.columns.correct.shape[1] > task]
            if own:
                bands[method] = band(*zip(*(_on_task(one, task) for one in own), strict=True))
        found.append(bands)
    return found


def _on_task(one: Timed, task: int) -> tuple[Floats, Floats]:
    """Times and accuracies in per cent since a task began."""
    values = 100 * one.columns.accuracy_on(task)
    begun = int((~np.isnan(values)).argmax())
    return one.times[begun:], values[begun:]


def accuracy_choices(
    methods: Methods, on_tasks: Sequence[Mapping[int, Band]]
) -> tuple[Choice, ...]:
    """Accuracy over time in per cent: on all tasks so far, on each task, and online."""
    share = min(1.0, LINES / max(1, len(on_tasks) * len(methods)))
    most = max(20, int(share * TASK_POINTS))
    found = {"All tasks so far": lines_of(methods, _together)}
    for task, bands in enumerate(on_tasks, start=1):
        lines = (line(method, own, most=most) for method, own in bands.items())
        found[f"Task {task}"] = tuple(one for own in lines for one in own)
    found["Each batch before it is learned"] = lines_of(methods, _online)
    return tuple(Choice(title=title, lines=lines) for title, lines in found.items() if lines)


def _together(own: Timed) -> Floats | None:
    return 100 * own.columns.accuracy() if own.columns.has_counts else None


def _online(own: Timed) -> Floats | None:
    values = own.columns.values
    if "online_correct" not in values:
        return None
    return 100 * values["online_correct"] / np.where(values["seen"], values["seen"], math.nan)


def milliseconds(columns: Columns) -> Floats:
    """Time of a batch since the evaluation before, ``(n,)``."""
    seconds = np.diff(columns.seconds, prepend=0.0)
    found: Floats = 1000 * seconds / np.maximum(np.diff(columns.index, prepend=-1), 1)
    return found


def time_lines(methods: Methods, tasks: int) -> tuple[Line, ...]:
    """Milliseconds of a batch over time: the median of each stretch, for each seed."""
    each = max(1, STRETCHES // tasks)
    grid = np.arange(1, tasks * each + 1) / each
    found: list[Line] = []
    for method, runs in enumerate(methods):
        times, values = [], []
        for own in runs:
            spent = milliseconds(own.columns)
            medians = per_stretch(own.times, spent, each=each, count=len(grid), how="median")
            end = int(np.flatnonzero(~np.isnan(medians))[-1]) + 1
            times.append(grid[:end])
            values.append(medians[:end])
        if times:
            found += line(method, band(times, values))
    return tuple(found)


def heats(on_tasks: Sequence[Mapping[int, Band]]) -> tuple[Heat, ...]:
    """Accuracy on each task over time, of each method that has been through several tasks."""
    tasks = len(on_tasks)
    each = max(1, STRETCHES // max(1, tasks))
    count = tasks * each
    x = tuple(np.round((np.arange(count) + 0.5) / each, 4).tolist())
    found = []
    for method in on_tasks[1] if tasks > 1 else ():
        bands = [bands[method] for bands in on_tasks if method in bands]
        means = [per_stretch(b.times, b.mean, each=each, count=count, how="mean") for b in bands]
        rows = tuple(numbers(np.round(_without_gaps(mean), 1)) for mean in means)
        found.append(Heat(method=method, x=x, rows=rows))
    return tuple(found)


def _without_gaps(values: Floats) -> Floats:
    """Fill each gap with the number before it; the ends stay as they are."""
    there = np.flatnonzero(~np.isnan(values))
    filled = values.copy()
    if len(there):
        places = np.arange(there[0], there[-1])
        filled[places] = values[there[np.searchsorted(there, places, side="right") - 1]]
    return filled
