"""A report as one HTML page that needs nothing else: no server, no network.

Jinja2 makes the content from ``content.html`` and the page around it from ``page.html``, and
escapes every text. The figures are drawn by plotly.js from the numbers; both are inside the page.
The live page of ``ocar watch`` is the same page; its script asks for newer content.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from importlib import resources
from typing import Any, NamedTuple

from ocar_lab.optional import needed
from ocar_lab.report.figures import Figure, Line
from ocar_lab.report.methods import Method
from ocar_lab.report.run_table import drawn_run, moment, run_columns, run_rows
from ocar_lab.report.sections import Report, Section
from ocar_lab.report.single_runs import flat_settings
from ocar_lab.report.studies import StudyPart
from ocar_lab.runs.find import HOW_TO_RUN
from ocar_lab.styles import styles

CHECKED = 8
"""Methods that are drawn at first; the reader can choose others."""

SMALL = ("tau", "replay_weight", "norm_ratio", "drop", "study-importance")
"""Figures that need less height."""


class Rendered(NamedTuple):
    """What the page shows; the live page replaces these three."""

    title: str
    content: str  # HTML, without the shell
    data: str  # JSON, what the script draws


def make_page(report: Report) -> str:
    """The page.

    Raises:
        MissingPackageError: plotly or Jinja2 is not installed.
    """
    return wrap(render(report))


def render(report: Report, *, live: bool = False) -> Rendered:
    """The content of the page, as HTML and as JSON.

    Raises:
        MissingPackageError: Jinja2 is not installed.
    """
    rows = run_rows(report)
    states = Counter(row["run"].state for row in rows)
    name = "ocar watch" if live else "ocar report"
    content = _template("content.html").render(
        name=name,
        live=live,
        report=report,
        created=moment(report.created),
        counted=", ".join(f"{count} {state}" for state, count in states.items()),
        rows=rows,
        columns=run_columns(report),
        filters={
            "Benchmark": sorted({row["benchmark"] for row in rows}),
            "Method": sorted({row["label"] for row in rows}),
            "State": list(states),
        },
        how_to_run=HOW_TO_RUN,
        sections=report.sections,
        frames=[_frames(section) for section in report.sections],
        study_frames=_study_frames,
        facts=_facts,
        dumps=partial(json.dumps, indent=1, ensure_ascii=False),
        checked=CHECKED,
        small=SMALL,
    )
    going = f"{states['running']} running, " if live and states["running"] else ""
    return Rendered(f"{going}{name}: {report.title}", content, _compact(_drawn(report)))


def wrap(rendered: Rendered, *, tag: str = "") -> str:
    """The content as a whole page; with a ``tag`` it asks the server for a newer content.

    Raises:
        MissingPackageError: plotly or Jinja2 is not installed.
    """
    with needed("A report", "jinja2", extra="report"):
        from jinja2.utils import htmlsafe_json_dumps
        from markupsafe import Markup
    with needed("A report", "plotly", extra="report"):
        from plotly.offline import get_plotlyjs
    return _template("page.html").render(
        title=rendered.title,
        tag=tag,
        content=Markup(rendered.content),
        css=Markup(_resource("page.css")),
        script=Markup(_resource("page.js")),
        library=Markup(_packed(get_plotlyjs())),
        data=htmlsafe_json_dumps(rendered.data, dumps=str),
    )


@cache
def _packed(library: str) -> str:
    """A script, compressed: plotly.js then takes a third of the space."""
    return base64.b64encode(gzip.compress(library.encode(), 6, mtime=0)).decode()


@cache
def _template(name: str) -> Any:
    with needed("A report", "jinja2", extra="report"):
        from jinja2 import Environment, StrictUndefined
    return Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    ).from_string(_resource(name))


_compact = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _resource(name: str) -> str:
    return resources.files("ocar_lab.report").joinpath(name).read_text(encoding="utf-8")


def _drawn(report: Report) -> dict[str, Any]:
    """What the script draws."""
    return {
        "sections": [
            {
                "benchmark": section.benchmark,
                "methods": [method.name for method in section.methods],
                "styles": [
                    {**style.colour._asdict(), "dashes": style.dashes, "marker": style.marker}
                    for style in styles([method.label for method in section.methods])
                ],
                "figures": [
                    {
                        "x": figure.x,
                        "y": figure.y,
                        "tasks": figure.tasks,
                        "low": figure.low,
                        "high": figure.high,
                        "top": figure.top,
                        "choices": [{"lines": [*map(vars, c.lines)]} for c in figure.choices],
                    }
                    for figure in section.figures
                ],
                "heats": [{"x": heat.x, "rows": heat.rows} for heat in section.heats],
                "settings": [flat_settings(method.config) for method in section.methods],
                "labels": [method.label for method in section.methods],
                "runs": [drawn_run(section, run) for run in section.runs],
            }
            for section in report.sections
        ],
        "studies": [
            {
                "axes": [*map(vars, study.axes)],
                "goodness": study.goodness,
                "texts": study.texts,
                "importance": study.importance,
            }
            for study in report.studies
        ],
    }


def _facts(method: Method) -> dict[str, str]:
    return {
        "Seeds": ", ".join(map(str, method.seeds)),
        "Not finished": ", ".join(f"seed {s} {state}" for s, state in method.unfinished.items()),
        "Configuration": method.hash,
        "Device": ", ".join(method.devices),
        "Source": method.revision or "",
        "Versions": ", ".join(f"{name} {v}" for name, v in method.versions.items()),
    }


def _frames(section: Section) -> list[dict[str, Any]]:
    """The frames that the script fills: one for each figure, one for all heat maps."""
    found: list[dict[str, Any]] = [
        {
            "key": figure.key,
            "kind": "figure",
            "number": number,
            "title": figure.title,
            "label": "Show",
            "options": [choice.title for choice in figure.choices],
            "caption": figure.caption,
            "described": _alternative(figure, section.methods),
        }
        for number, figure in enumerate(section.figures)
    ]
    if section.heats:
        tasks = len(section.heats[0].rows)
        heat = {
            "key": "heat",
            "kind": "heat",
            "number": "",
            "title": "Every task over time",
            "label": "Method",
            "options": [section.methods[heat.method].name for heat in section.heats],
            "caption": "Accuracy on each task over time, mean over seeds. A task is empty until it "
            "begins, and darker where it is forgotten.",
            "described": f"Heat map of the accuracy on each of {tasks} tasks over time.",
        }
        found.insert(1, heat)
    return found


def _study_frames(study: StudyPart) -> list[dict[str, Any]]:
    """The frames of a study: one line for each trial, one bar for each setting."""
    shares = "; ".join(f"{name} {share:.0f} %" for name, share in study.importance)
    frames = {
        "parallel": (
            "Trials",
            "One line for each finished trial, through its settings to its value. The stronger the "
            "colour, the better the trial; the best is thick.",
            f"Parallel coordinates of {len(study.texts)} trials; the table below has the numbers.",
            study.axes,
        ),
        "importance": (
            "Importance of the settings",
            "How much each setting separates the best tenth of the trials from the others "
            "(PED-ANOVA), in per cent of all.",
            f"Bars: {shares}.",
            study.importance,
        ),
    }
    return [
        {
            "key": f"study-{kind}",
            "kind": kind,
            "number": "",
            "title": title,
            "label": "",
            "options": [],
            "caption": caption,
            "described": described,
        }
        for kind, (title, caption, described, numbers) in frames.items()
        if numbers
    ]


def _alternative(figure: Figure, methods: Sequence[Method]) -> str:
    """A figure in words: where each line of its first choice ends, and its lowest point."""
    choice = figure.choices[0]
    texts = [f"{methods[line.method].name} {_ending(line)}" for line in choice.lines[:12]]
    more = len(choice.lines) - len(texts)
    others = f"; and {more} more" if more > 0 else ""
    return f"{figure.title}, {choice.title}, {figure.y}: {'; '.join(texts)}{others}."


def _ending(line: Line) -> str:
    there = [number for number in line.mean if number is not None]
    return f"ends at {there[-1]:.4g}, lowest {min(there):.4g}"
