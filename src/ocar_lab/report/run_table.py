"""The table of all runs on the page, and what the script knows of each."""

from __future__ import annotations

from typing import Any, NamedTuple

from ocar_lab.report.sections import Report, Section
from ocar_lab.report.single_runs import STATES, SingleRun
from ocar_lab.runs.table import Spread
from ocar_lab.runs.texts import MAIN, TITLES, metric_text, time_text


class Cell(NamedTuple):
    """A cell of the table of runs."""

    text: str
    sort: str = ""  # what the column is sorted by, if not by the text
    kind: str = ""  # class of the cell


def drawn_run(section: Section, run: SingleRun) -> dict[str, Any]:
    """A run for the script: where it belongs, its texts side by side with another, its curve."""
    return {
        "key": _key(run),
        "name": _run_name(section, run),
        "method": run.method,
        "seed": run.seed,
        "facts": {
            "State": run.state,
            "Batches": f"{run.done:,}" if run.done else "",
            "Accuracy so far": "" if run.accuracy is None else f"{100 * run.accuracy:.1f}",
            **{TITLES.get(name, name): text for name, text in _metric_texts(run).items()},
        },
        "line": None if run.line is None else vars(run.line),
    }


def _metric_texts(run: SingleRun) -> dict[str, str]:
    """Each metric of a run as the tables of a benchmark show it."""
    own = {n: Spread(mean=value, std=None, count=1) for n, value in run.metrics.items()}
    return {name: metric_text(name, own) for name in own}


def _key(run: SingleRun) -> str:
    return f"{run.path} {run.seed}"  # a result file holds several seeds


def _run_name(section: Section, run: SingleRun) -> str:
    return f"{section.benchmark} {section.methods[run.method].name}, seed {run.seed}"


def run_columns(report: Report) -> list[str]:
    """Titles of the table of runs; progress only if a run is not finished."""
    runs = [run for section in report.sections for run in section.runs]
    moving = any(run.state != "finished" for run in runs)
    metrics = [title for name, title in MAIN.items() if any(name in run.metrics for run in runs)]
    progress = ["progress", "time left", "so far"] if moving else []
    return ["method", "benchmark", "seed", "state", *progress, *metrics, "begun"]


def run_rows(report: Report) -> list[dict[str, Any]]:
    """The table of runs: those that are running first."""
    columns = run_columns(report)
    rows = []
    for number, section in enumerate(report.sections):
        for place, run in enumerate(section.runs):
            method = section.methods[run.method]
            cells = {
                "method": Cell(method.name),
                "benchmark": Cell(section.benchmark),
                "seed": Cell(str(run.seed)),
                "state": Cell(run.state, kind=run.state),
                **_progress(run),
                **{
                    TITLES[name]: Cell(text, str(run.metrics[name]))
                    for name, text in _metric_texts(run).items()
                    if name in MAIN
                },
                "begun": Cell(moment(run.begun or "")),
            }
            row = {
                "key": _key(run),
                "run": run,
                "section": number,
                "place": place,
                "benchmark": section.benchmark,
                "label": method.label,
                "name": _run_name(section, run),
                "cells": [cells.get(title, Cell("")) for title in columns],
            }
            rows.append(row)
    return sorted(rows, key=lambda row: (*STATES, row["run"].state).index(row["run"].state))


def _progress(run: SingleRun) -> dict[str, Cell]:
    """How far a run is, how long it will take, and its accuracy so far."""
    found = {}
    if run.state == "finished":
        found["progress"] = Cell("", "1")
    elif run.batches:
        share = run.done / run.batches
        text = f"{100 * share:.0f} % ({run.done:,} of {run.batches:,})"
        found["progress"] = Cell(text, f"{share:.4f}", "progress")
    else:
        found["progress"] = Cell(f"{run.done:,} batches", "0")
    if run.left is not None:
        found["time left"] = Cell(time_text(run.left), f"{run.left:.0f}")
    if run.accuracy is not None:
        found["so far"] = Cell(f"{100 * run.accuracy:.1f}", f"{run.accuracy:.5f}")
    return found


def moment(time: str) -> str:
    """A time as a reader writes it."""
    return time.replace("T", " ").replace("+00:00", " UTC")
