"""Tables that drift, from the files of ``results/tabular``: their table and their picture.

    python docs/_tools/tabular_pages.py

It draws ``docs/gallery/tables.png``. The file carries the sum of the numbers that it was drawn
from, and a test compares it with those that are stored.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pictures import write_picture
from tables import spread, table

from ocar_lab.drawing import BLUE, GREEN, LEGEND, RED, clean, mark_boundaries, new_figure

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "gallery" / "tables.png"
RESULTS = ROOT / "results" / "tabular"

REPLACED = ("sine", "agrawal", "hyperplane", "elec2")
OTHERS = ("phishing", "image-segments", "bananas")
REGRESSION = ("trump-approval", "etth1")
CURVES = {"sine": "Sine: the rule is replaced", "hyperplane": "Hyperplane: the rule turns slowly"}
TIMED = "bananas"
DIVERGED = 1000.0
"""An error that is as many times the variance is not shown as a number."""

ER = "ER, the best of five rates"
MEMORIES = ("OCAR, no settings", "OCAR, a window of 500", "OCAR, an exponential memory of 500")
DRAWN = {
    MEMORIES[0]: (RED, "-"),
    MEMORIES[1]: (BLUE, "-"),
    ER: ("0.5", "--"),
    "river, adaptive random forest": (GREEN, ":"),
}
"""Colour and line of what is drawn."""


def read_rows(name: str) -> dict[str, Any]:
    """Who was compared on a table, with the scores; the rate of ER is not named."""
    rows = json.loads(_path(name).read_text(encoding="utf-8"))["rows"]
    return {re.sub(r"lr=[\d.]+", "the best of five rates", who): row for who, row in rows.items()}


def scores_table(names: Sequence[str], who: Sequence[str] = ()) -> str:
    """Mean ± standard deviation on some tables, the best of each in bold.

    Args:
        names: The tables, all of classification or all of regression; those stored are shown.
        who: Who is shown; by default everybody.
    """
    found = {name: read_rows(name) for name in names if _path(name).exists()}
    shown = who or list(dict.fromkeys(one for rows in found.values() for one in rows))
    best = min if names[0] in REGRESSION else max
    winners = {
        name: best((one for one in shown if one in rows), key=lambda one: _mean(rows[one]))
        for name, rows in found.items()
    }
    cells = [
        [one, *(_cell(rows.get(one), name, winners[name] == one) for name, rows in found.items())]
        for one in shown
    ]
    return table(["", *found], cells, numbers=len(found))


def _path(name: str) -> Path:
    return RESULTS / f"{name}.json"


def _mean(row: Mapping[str, Any]) -> float:
    return statistics.mean(row["scores"])


def _cell(row: Mapping[str, Any] | None, name: str, best: bool) -> str:
    """A mean and its deviation, with one digit of a per cent or three of an error."""
    if row is None:
        return ""
    if _mean(row) > DIVERGED:
        return "diverged"
    scores = row["scores"]
    shown = spread(scores, 3) if name in REGRESSION else spread([100 * s for s in scores])
    return f"**{shown}**" if best else shown


def times_table() -> str:
    """Time a batch of ten on one stream, predictions included, and the ratio to ER."""
    rows = read_rows(TIMED)
    times = {who: row["ms_a_batch"] for who, row in rows.items() if not who.startswith("no change")}
    cells = [[who, f"{ms:.1f}", f"{ms / times[ER]:.1f}"] for who, ms in times.items()]
    return table(["", "ms a batch of ten", "over ER"], cells, numbers=2)


def tables_pieces() -> dict[str, str]:
    """What the pages include, by file."""
    return {
        "tables-replaced.md": scores_table(REPLACED),
        "tables-others.md": scores_table(OTHERS),
        "tables-regression.md": scores_table(REGRESSION),
        "tables-times.md": times_table(),
        "tables-memories.md": scores_table((*REPLACED, *OTHERS), MEMORIES),
    }


def read_numbers() -> dict[str, Any]:
    """The curves that are drawn, by table."""
    return {name: {who: read_rows(name)[who]["curve"] for who in DRAWN} for name in CURVES}


def draw(numbers: Mapping[str, Any]) -> Any:
    """The picture, as matplotlib's figure."""
    figure = new_figure(9.0, 3.3)
    for ax, (name, title) in zip(figure.subplots(1, 2), CURVES.items(), strict=True):
        for who, curve in numbers[name].items():
            colour, line = DRAWN[who]
            places = [100 * (place + 0.5) / len(curve) for place in range(len(curve))]
            ax.plot(places, [100 * v for v in curve], color=colour, ls=line, lw=1.3, label=who)
        clean(ax)
        ax.set_title(title, loc="left", fontsize=10)
        ax.set_xlabel("share of the stream (%)", fontsize=9)
        ax.set(xlim=(0, 100))
    left, right = figure.axes
    mark_boundaries(left, (25, 50, 75))
    left.set(ylabel="accuracy before learning (%)")
    right.legend(**LEGEND)
    return figure


def main() -> None:
    """Draw it."""
    numbers = read_numbers()
    write_picture(PICTURE, draw(numbers), numbers)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
