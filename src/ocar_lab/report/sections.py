"""A report on stored runs as plain values, one section for each benchmark."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocar_lab.published import SOURCE
from ocar_lab.report.boundaries import drop_lines, gap_lines
from ocar_lab.report.figures import (
    REPORTED,
    TASKS,
    Choice,
    Figure,
    Heat,
    Methods,
    accuracy_choices,
    heats,
    task_bands,
    time_lines,
    timed,
    value_lines,
)
from ocar_lab.report.methods import Method, describe_method
from ocar_lab.runs import Group, Measured, Run, groups
from ocar_lab.runs.texts import group_rows, main_metrics, other_metrics
from ocar_lab.runs.timeline import Band


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as texts; all columns but the first hold numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    printed: tuple[int, ...]  # places of the paper's rows


@dataclass(frozen=True, kw_only=True)
class Section:
    """The report on one benchmark."""

    benchmark: str
    methods: tuple[Method, ...]
    tables: tuple[Table, ...]  # the metrics that the paper compares, then the others
    figures: tuple[Figure, ...]
    heats: tuple[Heat, ...]
    warnings: tuple[str, ...]  # runs that are not finished
    notes: tuple[str, ...]  # numbers that were not recorded


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report on some runs."""

    title: str
    created: str  # when
    sections: tuple[Section, ...]
    errors: tuple[str, ...] = ()  # of runs that cannot be read
    paper: str = SOURCE


def make_report(
    runs: Sequence[Measured], *, title: str, created: str, errors: Sequence[str] = ()
) -> Report:
    """A report on stored runs and kept results; the latter have no numbers over time."""
    together = groups(runs)
    return Report(
        title=title,
        created=created,
        sections=tuple(
            _section(name, [group for group in together if group.benchmark == name], runs)
            for name in dict.fromkeys(group.benchmark for group in together)
        ),
        errors=tuple(errors),
    )


def plain(report: Report) -> dict[str, Any]:
    """The report as values for JSON."""
    return {"format": "ocar-report", "version": 1, **_fields(report)}


def _fields(value: Any) -> dict[str, Any]:
    """Fields by name; unlike dataclasses.asdict it does not copy long tuples of numbers."""
    return {
        name: [_fields(item) for item in field]
        if isinstance(field, tuple) and field and dataclasses.is_dataclass(field[0])
        else field
        for name, field in vars(value).items()
    }


def _section(benchmark: str, here: Sequence[Group], runs: Sequence[Measured]) -> Section:
    members = [[run for run in runs if run.key == group.key] for group in here]
    methods, tasks = timed([[run for run in own if isinstance(run, Run)] for own in members])
    on_tasks = task_bands(methods, tasks)
    metrics = (main_metrics(here), other_metrics(here))
    return Section(
        benchmark=benchmark,
        methods=tuple(describe_method(*pair) for pair in zip(here, members, strict=True)),
        tables=tuple(_table(benchmark, here, columns) for columns in metrics if columns),
        figures=_figures(methods, tasks, on_tasks),
        heats=heats(on_tasks),
        warnings=tuple(_unfinished(here)),
        notes=tuple(_unrecorded(methods)),
    )


def _table(benchmark: str, here: Sequence[Group], columns: Mapping[str, str]) -> Table:
    rows = group_rows(benchmark, here, columns)
    return Table(
        header=("method", "seeds", *columns.values()),
        rows=tuple(tuple(text.strip() for text in texts) for _, texts in rows),
        printed=tuple(place for place, (group, _) in enumerate(rows) if group is None),
    )


def _unfinished(here: Sequence[Group]) -> list[str]:
    states = [state for group in here for state in group.unfinished.values()]
    total = len(states) + sum(len(group.seeds) for group in here)
    if not states:
        return []
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return [
        f"{len(states)} of {total} runs are not finished ({counted}). They are not in the tables. "
        "In the figures their lines end early; a mean is over the seeds that have got so far."
    ]


def _unrecorded(methods: Methods) -> list[str]:
    runs = [own.columns for group in methods for own in group]
    if not runs:
        return ["Kept results have no numbers over time: there is nothing to draw."]
    recorded = {name for columns in runs for name in columns.values}
    if "tau" in recorded and "norm_ratio" not in recorded:
        return ["The ratio of gradient norms was not recorded: ocar run --track-norms does."]
    return []


def _figures(
    methods: Methods, tasks: int, on_tasks: Sequence[Mapping[int, Band]]
) -> tuple[Figure, ...]:
    """The figures that have a line."""
    figures = [
        Figure(
            key="accuracy",
            title="Accuracy at any time",
            caption="Accuracy on validation data after every evaluation.",
            y="accuracy (%)",
            choices=accuracy_choices(methods, on_tasks),
        ),
        Figure(
            key="loss",
            title="Cumulative loss",
            caption="Losses summed since the stream began; lower is better.",
            y="summed loss",
            choices=(
                Choice(title="L_p, on each incoming batch", lines=value_lines(methods, "l_p")),
                Choice(title="L_s, on all data so far", lines=value_lines(methods, "l_s")),
            ),
        ),
        Figure(
            key="gap",
            title="Stability gap around a boundary",
            caption="Accuracy on all earlier tasks together, minus its value at the last "
            "evaluation before a new task began; mean over boundaries.",
            x="evaluations since the boundary",
            y="change (points)",
            choices=(Choice(title="All boundaries", lines=gap_lines(methods)),),
        ),
        Figure(
            key="drop",
            title="Drop at each boundary",
            caption="How far the accuracy on all earlier tasks together fell while a task was "
            "learned.",
            x="task that begins",
            y="drop (points)",
            choices=(Choice(title="Each boundary", lines=drop_lines(methods)),),
        ),
        *(
            Figure(
                key=name,
                title=title,
                caption="As the learner reported it, over the stream.",
                y=axis,
                choices=(Choice(title=title, lines=value_lines(methods, name)),),
            )
            for name, (title, axis) in REPORTED.items()
        ),
        Figure(
            key="time",
            title="Time of a batch",
            caption="Training without evaluation; the median of each stretch of the stream.",
            y="milliseconds",
            choices=(Choice(title="Time of a batch", lines=time_lines(methods, tasks)),),
        ),
    ]
    spread = "Lines are means over seeds, bands ± one standard deviation."
    return tuple(
        dataclasses.replace(
            figure,
            caption=f"{figure.caption} {spread}",
            tasks=tasks if figure.x == TASKS else 0,
        )
        for figure in figures
        if any(choice.lines for choice in figure.choices)
    )
