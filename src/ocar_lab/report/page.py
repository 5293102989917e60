"""A report as one HTML page that needs nothing else: no server, no network.

Tables, notes, commands and configurations are HTML; the figures are drawn by plotly.js from the
numbers, both inside the page. Whatever comes from files is escaped here.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from ocar.errors import MissingPackageError
from ocar_lab.report.figures import Figure, Line
from ocar_lab.report.markup import code, escape, frame, json_text, paragraphs, select, table
from ocar_lab.report.methods import Method
from ocar_lab.report.sections import Report, Section, Table
from ocar_lab.styles import Look, looks

CHECKED = 8
"""Methods that are drawn at first; more can be chosen."""

SMALL = ("tau", "replay_weight", "norm_ratio", "drop")
"""Figures that need less height."""


def make_page(report: Report) -> str:
    """The page.

    Raises:
        MissingPackageError: plotly is not installed.
    """
    library = _plotly()
    body = "\n".join(_section(section, place) for place, section in enumerate(report.sections))
    title = f"ocar report: {report.title}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{_resource("page.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header>
<h1>{escape(title)}</h1>
<p class="quiet">Made {escape(_moment(report.created))} by <code>ocar report</code>.</p>
{_contents(report)}
</header>
<main id="main" tabindex="-1">
<noscript><p class="note">The figures need JavaScript; all else is here without it.</p></noscript>
{paragraphs(report.errors)}{_overview(report)}
{body}
</main>
<footer><p class="quiet">The paper's numbers: {escape(report.paper)}. Drag over a figure to zoom in,
double-click to zoom out.</p></footer>
<script type="application/json" id="data">{json_text(_drawn(report))}</script>
<script type="text/plain" id="plotly">{library}</script>
<script>
{_resource("page.js")}</script>
</body>
</html>
"""


def _plotly() -> str:
    """plotly.js, compressed, as text: a third of what it would be."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingPackageError(
            'The report is drawn by plotly, which is not installed: pip install "ocar[report]"'
        ) from error
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode()


def _resource(name: str) -> str:
    return resources.files("ocar_lab.report").joinpath(name).read_text(encoding="utf-8")


def _drawn(report: Report) -> dict[str, Any]:
    """What the script needs."""
    return {
        "sections": [
            {
                "methods": [method.name for method in section.methods],
                "looks": [_drawn_look(look) for look in looks([m.label for m in section.methods])],
                "figures": [_drawn_figure(figure) for figure in section.figures],
                "heats": [{"x": heat.x, "rows": heat.rows} for heat in section.heats],
            }
            for section in report.sections
        ]
    }


def _drawn_look(look: Look) -> dict[str, Any]:
    return {**look.colour._asdict(), "dashes": look.dashes, "marker": look.marker}


def _drawn_figure(figure: Figure) -> dict[str, Any]:
    choices = [{"lines": [vars(line) for line in choice.lines]} for choice in figure.choices]
    return {"x": figure.x, "y": figure.y, "tasks": figure.tasks, "choices": choices}


def _contents(report: Report) -> str:
    if len(report.sections) < 2:
        return ""
    items = "".join(
        f'<li><a href="#section-{place}">{escape(section.benchmark)}</a></li>'
        for place, section in enumerate(report.sections)
    )
    return f'<nav aria-label="Benchmarks"><ul>{items}</ul></nav>'


def _overview(report: Report) -> str:
    header = ("benchmark", "method", "seeds", "evaluations a run", "device", "begun")
    rows = [
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
    return f"<h2>What was run</h2>\n{table(header, rows, words=True)}"


def _moment(time: str) -> str:
    """A time as people write it."""
    return time.replace("T", " ").replace("+00:00", " UTC")


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _section(section: Section, place: int) -> str:
    captions = (
        "Mean ± sample standard deviation over seeds, accuracies in per cent",
        "The other metrics, in the same way",
    )
    tables = "\n".join(
        _results(one, caption) for one, caption in zip(section.tables, captions, strict=False)
    )
    figures = [_figure(figure, section, place, n) for n, figure in enumerate(section.figures)]
    if section.heats:
        figures.insert(1, _heat(section, place))
    picked = _picker(section) if section.figures else ""
    methods = "\n".join(map(_method, section.methods))
    return f"""<section id="section-{place}" aria-labelledby="title-{place}">
<h2 id="title-{place}">{escape(section.benchmark)}</h2>
{paragraphs(section.warnings)}{tables}
{paragraphs(section.notes, kind="quiet")}{picked}
{"".join(figures)}
<h3>Commands and configurations</h3>
{methods}
</section>"""


def _results(one: Table, caption: str) -> str:
    return table(one.header, one.rows, printed=one.printed, caption=caption)


def _picker(section: Section) -> str:
    """Check boxes for the methods, which are the legend as well."""
    labels = "".join(
        f'<label><input type="checkbox" value="{place}"{" checked" if place < CHECKED else ""}>'
        f'<svg width="36" height="14" data-place="{place}" aria-hidden="true"></svg>'
        f"<span>{escape(method.name)}</span></label>"
        for place, method in enumerate(section.methods)
    )
    buttons = ""
    if len(section.methods) > 3:
        buttons = '<button data-all="1">All</button><button data-all="0">None</button>'
    return f'<fieldset class="pick"><legend>Methods</legend><div>{labels}{buttons}</div></fieldset>'


def _figure(figure: Figure, section: Section, place: int, number: int) -> str:
    options = [choice.title for choice in figure.choices]
    size = " small" if figure.key in SMALL else ""
    return frame(
        f"{figure.key}-{place}",
        f'data-figure="{number}"',
        figure.title,
        select("Show", options),
        size,
        figure.caption,
        _alternative(figure, section.methods),
    )


def _heat(section: Section, place: int) -> str:
    names = [section.methods[heat.method].name for heat in section.heats]
    return frame(
        f"heat-{place}",
        'data-heat=""',
        "Every task over time",
        select("Method", names),
        "",
        "Accuracy on each task while the stream goes on, mean over seeds; a task is empty until it "
        "begins, and darker where it is forgotten.",
        f"Heat map of the accuracy on each of {len(section.heats[0].rows)} tasks over time.",
    )


def _alternative(figure: Figure, methods: Sequence[Method]) -> str:
    """The figure in words: where each line of its first choice ends, and its lowest point."""
    choice = figure.choices[0]
    told = [f"{methods[line.method].name} {_ending(line)}" for line in choice.lines[:12]]
    more = len(choice.lines) - len(told)
    others = f"; and {more} more" if more > 0 else ""
    return f"{figure.title}, {choice.title}, {figure.y}: {'; '.join(told)}{others}."


def _ending(line: Line) -> str:
    there = [number for number in line.mean if number is not None]
    return f"ends at {there[-1]:.4g}, lowest {min(there):.4g}"


def _method(method: Method) -> str:
    facts = {
        "Seeds": ", ".join(map(str, method.seeds)),
        "Not finished": ", ".join(f"seed {s} {state}" for s, state in method.unfinished.items()),
        "Configuration": method.hash,
        "Device": ", ".join(method.devices),
        "Source": method.revision or "",
        "Versions": ", ".join(f"{name} {v}" for name, v in method.versions.items()),
    }
    terms = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items() if v)
    command = "" if method.command is None else code("To run all of it:", method.command)
    called = "" if not method.called else code("As it was called:", "\n".join(method.called))
    config = json.dumps(method.config, indent=1, ensure_ascii=False)
    return f"""<details><summary>{escape(method.name)}</summary>
<dl>{terms}</dl>
{command}{called}<p>All that decides the numbers, beside the seed:</p>
<pre tabindex="0">{escape(config)}</pre>
</details>"""
