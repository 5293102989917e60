"""A report on stored runs as plain values, one section for each benchmark."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocar.errors import RunError
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
    run_lines,
    task_bands,
    time_lines,
    timed,
    usual_top,
    value_lines,
)
from ocar_lab.report.methods import Method, describe_method
from ocar_lab.report.single_runs import SingleRun, describe_run
from ocar_lab.report.studies import StudyPart
from ocar_lab.runs import Group, Measured, Run, groups
from ocar_lab.runs.paired import compare
from ocar_lab.runs.texts import (
    ABSOLUTE,
    EXPLAINED,
    HIGHER_IS_BETTER,
    TITLES,
    best_groups,
    comparable,
    group_rows,
    labels,
    main_metrics,
    other_metrics,
    spread_text,
)
from ocar_lab.runs.timeline import Band


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as texts; all columns but the first hold numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    printed: tuple[int, ...]  # places of the paper's rows
    best: tuple[tuple[int, int], ...]  # row and column of the best of each metric
    explained: tuple[tuple[str, str], ...]  # each metric's title, and what it is


@dataclass(frozen=True, kw_only=True)
class Section:
    """The report on one benchmark."""

    benchmark: str
    headline: str  # which method is best, and by how much; empty if no run is finished
    methods: tuple[Method, ...]
    tables: tuple[Table, ...]  # the metrics that the paper compares, then the others
    figures: tuple[Figure, ...]
    heats: tuple[Heat, ...]
    runs: tuple[SingleRun, ...]
    warnings: tuple[str, ...]  # runs that are not finished
    notes: tuple[str, ...]  # numbers that were not recorded


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report on some runs."""

    title: str
    created: str  # when
    sections: tuple[Section, ...]
    studies: tuple[StudyPart, ...] = ()
    errors: tuple[str, ...] = ()  # of runs and studies that cannot be read
    paper: str = SOURCE


def make_report(
    runs: Sequence[Measured],
    *,
    title: str,
    created: str,
    studies: Sequence[StudyPart] = (),
    errors: Sequence[str] = (),
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
        studies=tuple(studies),
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
        else (_fields(field) if dataclasses.is_dataclass(field) else field)
        for name, field in vars(value).items()
    }


def _section(benchmark: str, here: Sequence[Group], runs: Sequence[Measured]) -> Section:
    members = [[run for run in runs if run.key == group.key] for group in here]
    methods, tasks = timed([[run for run in own if isinstance(run, Run)] for own in members])
    on_tasks, curves = task_bands(methods, tasks), run_lines(methods)
    metrics = (main_metrics(here), other_metrics(here))
    return Section(
        benchmark=benchmark,
        headline=headline(here, members),
        methods=tuple(map(describe_method, labels(here), here, members)),
        tables=tuple(_table(benchmark, here, columns) for columns in metrics if columns),
        figures=_figures(methods, tasks, on_tasks),
        heats=heats(on_tasks),
        runs=tuple(
            describe_run(run, method=place, line=curves.get(run.path))
            for place, own in enumerate(members)
            for run in own
        ),
        warnings=tuple(_unfinished(here)),
        notes=tuple(_unrecorded(methods)),
    )


def _table(benchmark: str, here: Sequence[Group], columns: Mapping[str, str]) -> Table:
    rows = group_rows(benchmark, here, columns)
    ours = [place for place, (group, _) in enumerate(rows) if group is not None]
    return Table(
        header=("method", "seeds", *columns.values()),
        rows=tuple(tuple(text.strip() for text in texts) for _, texts in rows),
        printed=tuple(place for place, (group, _) in enumerate(rows) if group is None),
        best=tuple(
            (ours[place], column)
            for column, name in enumerate(columns, start=2)
            for place in sorted(best_groups(name, here))
        ),
        explained=tuple((title, EXPLAINED[n]) for n, title in columns.items() if n in EXPLAINED),
    )


def headline(here: Sequence[Group], members: Sequence[Sequence[Measured]]) -> str:
    """One sentence or two: the best method by the main metric, and how clear that is."""
    name = next((n for n in ("acc", "l_p") if any(n in g.metrics for g in here)), "")
    compared = comparable(here)
    order = sorted(
        (place for place, group in enumerate(here) if group in compared and name in group.metrics),
        key=lambda place: here[place].metrics[name].mean,
        reverse=name in HIGHER_IS_BETTER,
    )
    if not order:
        return ""
    names = labels(here)
    texts = [f"{names[p]} {spread_text(name, here[p].metrics[name])}" for p in order]
    unit = "" if name in ABSOLUTE else " %"
    if len(order) == 1:
        return f"{TITLES[name]} of {texts[0]}{unit}."
    said = f"Best {TITLES[name]}: {texts[0]}{unit}, then {texts[1]}{unit}."
    try:
        pair = compare(members[order[1]], members[order[0]]).metrics[name]
    except (RunError, KeyError):  # no seed in common
        return said
    if pair.interval is None:
        return f"{said} With one seed in common, that may be chance."
    scale = 1 if name in ABSOLUTE else 100
    low, high = (scale * end for end in pair.interval)
    clear = "" if pair.clear else " It may be chance: the interval includes 0."
    difference = f"{scale * pair.difference:+.1f}{'' if name in ABSOLUTE else ' points'}"
    return (
        f"{said} The difference is {difference}, with a 95 % interval of {low:+.1f} to {high:+.1f} "
        f"over {pair.pairs} seeds.{clear}"
    )


def _unfinished(here: Sequence[Group]) -> list[str]:
    states = [state for group in here for state in group.unfinished.values()]
    total = len(states) + sum(len(group.seeds) for group in here)
    if not states:
        return []
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return [
        f"Not finished: {len(states)} of {total} runs ({counted}). The tables leave out unfinished "
        "runs. In the figures their lines end early; a mean is over the seeds that have got so far."
    ]


def _unrecorded(methods: Methods) -> list[str]:
    runs = [own.columns for group in methods for own in group]
    if not runs:
        return ["Kept results have no numbers over time: there is nothing to draw."]
    recorded = {name for columns in runs for name in columns.values}
    if "tau" in recorded and "norm_ratio" not in recorded:
        return ["The ratio of gradient norms was not recorded. ocar run --track-norms records it."]
    return []


def _figures(
    methods: Methods, tasks: int, on_tasks: Sequence[Mapping[int, Band]]
) -> tuple[Figure, ...]:
    """The figures that have a line."""
    spent = time_lines(methods, tasks)
    figures = [
        Figure(
            key="accuracy",
            title="Accuracy at any time",
            caption="Accuracy on validation data after every evaluation.",
            y="accuracy (%)",
            low=0.0,
            high=100.0,
            choices=accuracy_choices(methods, on_tasks),
        ),
        Figure(
            key="loss",
            title="Cumulative loss",
            caption="Losses summed since the stream began; lower is better.",
            y="summed loss",
            low=0.0,
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
            low=-100.0,
            high=100.0,
            choices=(Choice(title="All boundaries", lines=gap_lines(methods)),),
        ),
        Figure(
            key="drop",
            title="Drop at each boundary",
            caption="How far the accuracy on all earlier tasks together fell while a task was "
            "learned.",
            x="task that begins",
            y="drop (points)",
            low=0.0,
            high=100.0,
            choices=(Choice(title="Each boundary", lines=drop_lines(methods)),),
        ),
        *(
            Figure(
                key=name,
                title=title,
                caption="As the learner reported it, over the stream.",
                y=axis,
                low=0.0,
                choices=(Choice(title=title, lines=value_lines(methods, name)),),
            )
            for name, (title, axis) in REPORTED.items()
        ),
        Figure(
            key="time",
            title="Time of a batch",
            caption="Training without evaluation; the median of each stretch of the stream. "
            "Batches that take far longer, such as the first, can lie above the figure.",
            y="milliseconds",
            low=0.0,
            top=usual_top(spent),
            choices=(Choice(title="Time of a batch", lines=spent),),
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
