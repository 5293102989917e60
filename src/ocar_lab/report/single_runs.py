"""One run as a row of the page: how far it is, how long it will take, what came out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ocar_lab.report.figures import Line
from ocar_lab.runs import Measured, Run
from ocar_lab.runs.folder import METRICS

STATES = ("running", "failed", "killed", "stopped", "finished")
"""In the order of the table."""


@dataclass(frozen=True, kw_only=True)
class SingleRun:
    """One run."""

    path: str
    method: int  # place of the method in its section
    seed: int
    state: str
    error: str  # why it failed; empty if it did not
    done: int  # batches up to the last evaluation
    batches: int  # in all; 0 if unknown
    left: float | None  # seconds, at the speed it has had; None if unknown or not running
    begun: str | None
    accuracy: float | None  # on all tasks so far, at the last evaluation
    metrics: Mapping[str, float]  # of a finished run
    line: Line | None  # its curve


def describe_run(run: Measured, *, method: int, line: Line | None) -> SingleRun:
    """Describe one run."""
    status = run.status if isinstance(run, Run) else {}
    total, error = status.get("batches"), status.get("error")
    batches = total if isinstance(total, int) else 0
    done, accuracy = 0, None
    if isinstance(run, Run) and len(run.columns):
        done = int(run.columns.index[-1]) + 1
        last = float(run.columns.accuracy()[-1])
        accuracy = last if math.isfinite(last) else None
    begun = run.sessions[0].get("time") if run.sessions else None
    return SingleRun(
        path=str(run.path),
        method=method,
        seed=run.seed,
        state=run.state,
        error=str(error) if error and run.state == "failed" else "",
        done=done,
        batches=max(batches, done) if batches else 0,
        left=_left(run, done, batches) if isinstance(run, Run) else None,
        begun=begun,
        accuracy=accuracy,
        metrics={} if run.summary is None else _finite(vars(run.summary)),
        line=line,
    )


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {n: value for n, value in metrics.items() if value is not None and math.isfinite(value)}


def _left(run: Run, done: int, batches: int) -> float | None:
    """Seconds left, if the batches to come take as long as those of the present session."""
    session = run.sessions[-1]
    before = session.get("batch", 0)
    if run.state != "running" or not batches or done <= before or "time" not in session:
        return None
    try:
        latest = (run.path / METRICS).stat().st_mtime
    except OSError:
        return None
    spent = max(0.0, latest - datetime.fromisoformat(session["time"]).timestamp())
    return spent / (done - before) * max(0, batches - done)


def flat_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """A configuration by name, as the filter and the comparison of two runs show it.

    Settings of the method and of its transform stand under their own names, parts of a setting
    under dotted names: ``lr``, ``normalize.kind``. A setting that is None is left out.
    """
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            inner = flat_settings(value)
            outer = "" if name in ("settings", "transform") else f"{name}."
            found |= {f"{outer}{key}": text for key, text in inner.items()}
        elif value is not None:
            found[name] = str(value)
    return found
