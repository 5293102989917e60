"""A report on stored runs as plain values: one section a benchmark."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocar_lab.published import SOURCE
from ocar_lab.report.boundaries import drop_lines, gap_lines
from ocar_lab.report.figures import (
    REPORTED,
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
from ocar_lab.report.timeline import Band
from ocar_lab.runs import Group, Measured, Run, groups
from ocar_lab.runs.texts import group_rows, main_metrics, other_metrics

TASKS = "time in tasks"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as texts."""

    header: tuple[str, ...]
    """Titles of the columns."""

    rows: tuple[tuple[str, ...], ...]
    """Their texts; all columns but the first hold numbers."""

    printed: tuple[int, ...]
    """The rows that are the paper's."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """What there is to say of a benchmark."""

    benchmark: str
    """Its name."""

    methods: tuple[Method, ...]
    """What was run on it."""

    tables: tuple[Table, ...]
    """The metrics that the paper compares, then the others."""

    figures: tuple[Figure, ...]
    """Lines."""

    heats: tuple[Heat, ...]
    """Heat maps."""

    warnings: tuple[str, ...]
    """What a reader must know: runs that are not finished."""

    notes: tuple[str, ...]
    """What a reader may miss: numbers that were not recorded."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All there is to say of some runs."""

    title: str
    """What they are."""

    created: str
    """When it was made."""

    sections: tuple[Section, ...]
    """One a benchmark."""

    errors: tuple[str, ...] = ()
    """What is wrong with runs that cannot be read."""

    paper: str = SOURCE
    """Where the paper's numbers are from."""


def make_report(
    runs: Sequence[Measured], *, title: str, created: str, errors: Sequence[str] = ()
) -> Report:
    """A report on runs.

    Args:
        runs: Stored runs or kept results; of the latter there is nothing over time.
        title: What they are.
        created: When this is.
        errors: What is wrong with runs that are not among them.
    """
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
    """The same as values that JSON has."""
    return {"format": "ocar-report", "version": 1, **_fields(report)}


def _fields(value: Any) -> dict[str, Any]:
    """Fields by name; long tuples of numbers are not copied, as dataclasses.asdict would."""
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {
        name: [_fields(item) for item in field]
        if isinstance(field, tuple) and field and dataclasses.is_dataclass(field[0])
        else field
        for name, field in fields.items()
    }


def _section(benchmark: str, here: Sequence[Group], runs: Sequence[Measured]) -> Section:
    members = [[run for run in runs if _of(run) == _of(group)] for group in here]
    stored = [[run for run in own if isinstance(run, Run)] for own in members]
    methods, tasks = timed(stored)
    described = [describe_method(*pair) for pair in zip(here, members, strict=True)]
    on_tasks = task_bands(methods, tasks)
    figures = _figures(methods, tasks, on_tasks)
    return Section(
        benchmark=benchmark,
        methods=tuple(described),
        tables=tuple(
            _table(benchmark, here, columns)
            for columns in (main_metrics(here), other_metrics(here))
            if columns
        ),
        figures=figures,
        heats=heats(on_tasks),
        warnings=tuple(_unfinished(here)),
        notes=tuple(_unrecorded(methods)),
    )


def _of(of: Measured | Group) -> tuple[str, str, str]:
    return of.benchmark, of.label, of.hash


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
        f"{len(states)} of {total} runs are not finished ({counted}). They are not in the tables; "
        "in the figures their lines end where they stand, and a mean is over those seeds that "
        "have got so far."
    ]


def _unrecorded(methods: Methods) -> list[str]:
    runs = [own.columns for group in methods for own in group]
    if not runs:
        return ["Kept results hold no numbers over time: there is nothing to draw."]
    if any("tau" in columns.values for columns in runs) and not any(
        "norm_ratio" in columns.values for columns in runs
    ):
        return ["The ratio of gradient norms was not recorded: ocar run --track-norms does."]
    return []


def _figures(
    methods: Methods, tasks: int, on_tasks: Sequence[Mapping[int, Band]]
) -> tuple[Figure, ...]:
    spread = "Lines are means over seeds, bands ± one standard deviation."
    losses = [
        Choice(title=title, lines=value_lines(methods, name))
        for name, title in (("l_p", "L_p, on what comes next"), ("l_s", "L_s, on all so far"))
    ]
    candidates = [
        Figure(
            key="accuracy",
            title="Accuracy at any time",
            caption=f"Accuracy on validation data after every evaluation. {spread}",
            y="accuracy (%)",
            choices=accuracy_choices(methods, on_tasks),
            x=TASKS,
            tasks=tasks,
        ),
        Figure(
            key="loss",
            title="Loss so far",
            caption=f"Losses summed since the stream began; lower is better. {spread}",
            y="summed loss",
            choices=tuple(losses),
            x=TASKS,
            tasks=tasks,
        ),
        Figure(
            key="gap",
            title="Stability gap around a boundary",
            caption="Accuracy on all earlier tasks together, less what it was at the last "
            f"evaluation before a new task began; mean over boundaries. {spread}",
            x="evaluations since the boundary",
            y="change (points)",
            choices=(Choice(title="All boundaries", lines=gap_lines(methods)),),
        ),
        Figure(
            key="drop",
            title="Drop at each boundary",
            caption="How far the accuracy on all earlier tasks together fell while a task was "
            f"learned. {spread}",
            x="task that begins",
            y="drop (points)",
            choices=(Choice(title="Each boundary", lines=drop_lines(methods)),),
        ),
        *(
            Figure(
                key=name,
                title=title,
                caption=f"As the learner reported it, over the stream. {spread}",
                y=axis,
                choices=(Choice(title=title, lines=value_lines(methods, name)),),
                x=TASKS,
                tasks=tasks,
            )
            for name, (title, axis) in REPORTED.items()
        ),
        Figure(
            key="time",
            title="Time a batch",
            caption="Training alone, evaluation left out; the median of each stretch of the "
            f"stream. {spread}",
            y="milliseconds",
            choices=(Choice(title="Time a batch", lines=time_lines(methods, tasks)),),
            x=TASKS,
            tasks=tasks,
        ),
    ]
    return tuple(f for f in candidates if any(choice.lines for choice in f.choices))
