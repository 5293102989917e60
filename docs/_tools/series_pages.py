"""The tables of the gallery's time series."""

from __future__ import annotations

import json
import statistics
from typing import Any

from result_pages import RESULTS
from tables import spread, table


def series_tables() -> str:
    """Errors and times of each horizon, from ``results/gallery/series.json``."""
    stored = json.loads((RESULTS / "gallery" / "series.json").read_text())
    return "\n".join(_table(horizon, about["rows"]) for horizon, about in stored.items())


def series_cost() -> str:
    """A sentence: what OCAR costs beside ER."""
    rows = json.loads((RESULTS / "gallery" / "series.json").read_text())["24"]["rows"]
    ours, er = (_mean(rows[name], "ms") for name in ("OCAR, Student-t", "ER"))
    return f"OCAR takes {ours:.0f} ms of one core a day of the stream, {ours / er:.1f} times ER.\n"


def _table(horizon: str, rows: dict[str, Any]) -> str:
    ahead = "one hour ahead" if horizon == "1" else f"{horizon} hours ahead"
    head = (f"forecasts {ahead}", "MASE, a day", "MASE, an hour", "NatSR's ratio", "ms a day")
    by_error = sorted(rows, key=lambda name: _mean(rows[name], "mase"))
    keys = ("mase", "mase_1", "natsr")
    cells = [
        (_name(name, rows[name]), *(_cell(rows[name], key) for key in keys), _ms(rows[name]))
        for name in by_error
    ]
    return table(head, cells, numbers=4)


def _name(name: str, row: dict[str, Any]) -> str:
    return f"{name}, {row['choice']}" if row["choice"] else name


def _values(row: dict[str, Any], key: str) -> list[float]:
    return [found[key] for found in row["runs"]]


def _mean(row: dict[str, Any], key: str) -> float:
    return statistics.fmean(_values(row, key))


def _cell(row: dict[str, Any], key: str) -> str:
    return spread(_values(row, key), digits=3)


def _ms(row: dict[str, Any]) -> str:
    value = _mean(row, "ms")
    return f"{value:.0f}" if value >= 1 else "< 1"
