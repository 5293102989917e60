"""What the figures of a report show, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ocar_lab.report.timeline import (
    Band,
    band,
    stretch_means,
    stretch_medians,
    task_lengths,
    thin,
    times_in_tasks,
)
from ocar_lab.runs import Run
from ocar_lab.runs.columns import Columns, Floats

Number = float | None
"""None where there is none: JSON has no NaN."""

POINTS = 480
"""Most points of a line."""

TASK_POINTS = 160
"""Most points of a line of one task; there are as many of these as tasks."""

LINES = 400
"""From so many lines in a figure on, each has fewer points."""

STRETCHES = 240
"""Stretches of time of a heat map and of the time a batch takes."""

REPORTED = {
    "tau": ("τ, the damping", "τ"),
    "replay_weight": ("λ, the weight of replayed samples", "weight"),
    "norm_ratio": ("Gradient norm after over before preconditioning", "ratio"),
}
"""What a learner reports, with title and axis."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Mean ± standard deviation over seeds, of one method."""

    method: int
    """Place of the method in its section."""

    x: tuple[float, ...]
    """Where."""

    mean: tuple[Number, ...]
    """Mean over seeds."""

    std: tuple[Number, ...]
    """Sample standard deviation; None where there are less than two seeds."""

    seeds: tuple[int, ...]
    """Over how many seeds, at each point."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of several things that a figure can show."""

    title: str
    """What it is."""

    lines: tuple[Line, ...]
    """The methods that have it."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Lines over time."""

    key: str
    """A short name."""

    title: str
    """A line above."""

    caption: str
    """What is seen."""

    x: str
    """Title of the horizontal axis."""

    y: str
    """Title of the vertical axis."""

    choices: tuple[Choice, ...]
    """What can be shown, one at a time."""

    tasks: int = 0
    """Where the horizontal axis is time in tasks, how many there are."""


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Accuracy on each task over time, of one method, mean over seeds, in per cent."""

    method: int
    """Place of the method in its section."""

    x: tuple[float, ...]
    """Middle of each stretch of time, in tasks."""

    rows: tuple[tuple[Number, ...], ...]
    """One a task; None before it begins."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Timed:
    """A run and when its evaluations were made."""

    run: Run
    """The run."""

    times: Floats
    """Time in tasks, ``(evaluations,)``; where all tasks are one, spread over as many."""

    iid: bool
    """Whether all tasks are one."""

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
        known = whole if iid else lengths
        times = times_in_tasks(run.columns, finished=finished, lengths=known)
        return Timed(run=run, times=times * tasks if iid else times, iid=iid)

    return [[one(run) for run in own if len(run.columns)] for own in methods], tasks


def line(method: int, found: Band, *, most: int = POINTS) -> Line | None:
    """A band as a line to draw; None if it has no number.

    Args:
        method: Place of the method.
        found: The band, over time in tasks.
        most: Most points, see :func:`ocar_lab.report.timeline.thin`.
    """
    kept = thin(found.times, found.mean, most)
    if not len(kept):
        return None
    return Line(
        method=method,
        x=tuple(np.round(found.times[kept], 4).tolist()),
        mean=numbers(found.mean[kept]),
        std=numbers(found.std[kept]),
        seeds=tuple(found.count[kept].tolist()),
    )


def numbers(values: Floats) -> tuple[Number, ...]:
    """Plain numbers, to five digits of the largest; None for NaN."""
    there = ~np.isnan(values)
    largest = float(np.abs(values[there]).max()) if there.any() else 0.0
    digits = 4 - math.floor(math.log10(largest)) if largest else 0
    plain = np.round(values, digits).tolist()
    return tuple(plain if there.all() else [None if v != v else v for v in plain])


def lines_of(
    methods: Methods, number: Callable[[Timed], Floats | None], *, most: int = POINTS
) -> tuple[Line, ...]:
    """A number over time, of each method that has it.

    Args:
        methods: The runs of each method.
        number: What to take of a run, one for each evaluation; None if it has no such thing.
        most: Most points of a line.
    """
    found = []
    for method, runs in enumerate(methods):
        pairs = [(own.times, values) for own in runs if (values := number(own)) is not None]
        if pairs:
            found.append(line(method, band(*zip(*pairs, strict=True)), most=most))
    return tuple(one for one in found if one is not None)


def task_bands(methods: Methods, tasks: int) -> list[dict[int, Band]]:
    """Accuracy on each task over time in per cent, by method; none where all tasks are one."""
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
    """When a task was evaluated, and the accuracy on it in per cent."""
    values = 100 * one.columns.accuracy_on(task)
    begun = int((~np.isnan(values)).argmax())
    return one.times[begun:], values[begun:]


def accuracy_choices(
    methods: Methods, on_tasks: Sequence[Mapping[int, Band]]
) -> tuple[Choice, ...]:
    """Accuracy over time in per cent: on all tasks so far, on each alone, and online.

    Args:
        methods: The runs of each method.
        on_tasks: What :func:`task_bands` found.
    """
    share = min(1.0, LINES / max(1, len(on_tasks) * len(methods)))
    most = max(20, int(share * TASK_POINTS))
    choices = [Choice(title="All tasks so far", lines=lines_of(methods, _together))]
    for task, bands in enumerate(on_tasks, start=1):
        lines = [line(method, found, most=most) for method, found in bands.items()]
        told = tuple(one for one in lines if one is not None)
        choices.append(Choice(title=f"Task {task}", lines=told))
    choices.append(Choice(title="Before it was learned", lines=lines_of(methods, _online)))
    return tuple(choice for choice in choices if choice.lines)


def _together(own: Timed) -> Floats | None:
    return 100 * own.columns.accuracy() if own.columns.has_counts else None


def _online(own: Timed) -> Floats | None:
    values = own.columns.values
    if "online_correct" not in values:
        return None
    return 100 * values["online_correct"] / np.where(values["seen"], values["seen"], math.nan)


def value_lines(methods: Methods, name: str) -> tuple[Line, ...]:
    """A number over time that evaluations carry, such as ``l_p`` or ``tau``."""
    return lines_of(methods, lambda own: own.columns.values.get(name))


def milliseconds(columns: Columns) -> Floats:
    """Time a batch since the evaluation before, ``(evaluations,)``."""
    seconds = np.diff(columns.seconds, prepend=0.0)
    found: Floats = 1000 * seconds / np.maximum(np.diff(columns.index, prepend=-1), 1)
    return found


def time_lines(methods: Methods, tasks: int) -> tuple[Line, ...]:
    """Milliseconds a batch over time: the median of each stretch of each seed."""
    each = max(1, STRETCHES // tasks)
    moments = np.arange(1, tasks * each + 1) / each
    found = []
    for method, runs in enumerate(methods):
        medians = [
            stretch_medians(own.times, milliseconds(own.columns), each=each, count=len(moments))
            for own in runs
        ]
        if medians:
            ends = [moments[: int(np.flatnonzero(~np.isnan(m))[-1]) + 1] for m in medians]
            pairs = zip(ends, medians, strict=True)
            values = [median[: len(end)] for end, median in pairs]
            found.append(line(method, band(ends, values)))
    return tuple(one for one in found if one is not None)


def heats(on_tasks: Sequence[Mapping[int, Band]]) -> tuple[Heat, ...]:
    """Accuracy on each task over time, of each method that has been through more than one.

    Args:
        on_tasks: What :func:`task_bands` found.
    """
    tasks = len(on_tasks)
    each = max(1, STRETCHES // max(1, tasks))
    count = tasks * each
    x = tuple(np.round((np.arange(count) + 0.5) / each, 4).tolist())
    found = []
    for method in on_tasks[1] if tasks > 1 else ():
        bands = [bands[method] for bands in on_tasks if method in bands]
        means = [stretch_means(b.times, b.mean, each=each, count=count) for b in bands]
        rows = tuple(numbers(np.round(mean, 1)) for mean in means)
        found.append(Heat(method=method, x=x, rows=rows))
    return tuple(found)
