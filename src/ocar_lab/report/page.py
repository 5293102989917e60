"""A report as one HTML page that needs nothing else: no server, no network.

Jinja2 makes the page from ``page.html`` and escapes every text. The figures are drawn by plotly.js
from the numbers; both are inside the page.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from functools import partial
from importlib import resources
from typing import Any

from ocar_lab.optional import needed
from ocar_lab.report.figures import Figure, Line
from ocar_lab.report.methods import Method
from ocar_lab.report.sections import Report, Section
from ocar_lab.styles import styles

CHECKED = 8
"""Methods that are drawn at first; the reader can choose others."""

SMALL = ("tau", "replay_weight", "norm_ratio", "drop")
"""Figures that need less height."""


def make_page(report: Report) -> str:
    """The page.

    Raises:
        MissingPackageError: plotly or Jinja2 is not installed.
    """
    with needed("A report", "jinja2", extra="report"):
        from jinja2 import Environment, StrictUndefined
        from jinja2.utils import htmlsafe_json_dumps
        from markupsafe import Markup
    with needed("A report", "plotly", extra="report"):
        from plotly.offline import get_plotlyjs
    # Compressed, plotly.js takes a third of the space.
    library = base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode()
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    compact = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return environment.from_string(_resource("page.html")).render(
        report=report,
        created=_moment(report.created),
        overview=_overview(report),
        sections=report.sections,
        frames=[_frames(section) for section in report.sections],
        facts=_facts,
        dumps=partial(json.dumps, indent=1, ensure_ascii=False),
        checked=CHECKED,
        small=SMALL,
        css=Markup(_resource("page.css")),
        script=Markup(_resource("page.js")),
        library=Markup(library),
        data=htmlsafe_json_dumps(_drawn(report), dumps=compact),
    )


def _resource(name: str) -> str:
    return resources.files("ocar_lab.report").joinpath(name).read_text(encoding="utf-8")


def _moment(time: str) -> str:
    return time.replace("T", " ").replace("+00:00", " UTC")


def _drawn(report: Report) -> dict[str, Any]:
    """What the script draws."""
    return {
        "sections": [
            {
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
            }
            for section in report.sections
        ]
    }


def _overview(report: Report) -> list[tuple[str, ...]]:
    return [
        (
            section.benchmark,
            method.name,
            method.progress,
            _range(method.evaluations),
            ", ".join(method.devices),
            _moment(method.begun or ""),
        )
        for section in report.sections
        for method in section.methods
    ]


def _range(counts: Sequence[int]) -> str:
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


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
