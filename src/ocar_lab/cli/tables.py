"""What commands print: tables for a terminal or as Markdown, JSON, errors.

A name or a text from a file may hold anything. Control characters are printed by their codes, and
Markdown has no markup but ours.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ocar.files import printable
from ocar_lab.runs import Group, Measured, groups
from ocar_lab.runs.texts import Sheet, best_groups, group_rows, main_metrics, other_metrics


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print_text(json.dumps(value, indent=1, ensure_ascii=False))


def print_text(text: str) -> None:
    """Print some lines; in JSON the codes of control characters stand for them."""
    sys.stdout.write(f"{printable(text, lines=True)}\n")


def print_errors(errors: Iterable[str]) -> None:
    """Print the errors of runs that cannot be read."""
    sys.stderr.writelines(f"ocar: {printable(error, lines=True)}\n" for error in errors)


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    numbers: bool = False,
) -> None:
    """Print a table: fitted to a terminal, plain and with unbroken lines elsewhere.

    With ``numbers`` all columns but the first are aligned to the right, and what a terminal has no
    room for follows below, with the first column again.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    width = None if terminal else 1000
    console = Console(
        width=width, highlight=False, markup=False, emoji=False, soft_wrap=not terminal
    )
    if title:
        console.print(printable(title), style="bold")
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for places in _parts(widths, console.width) if numbers else [range(len(widths))]:
        table = Table(
            box=box.SIMPLE_HEAD if terminal else None,
            show_edge=False,
            pad_edge=False,
            collapse_padding=terminal,
        )
        for place in places:
            is_number = numbers and place > 0
            justify: Any = "right" if is_number else "left"
            table.add_column(cells[0][place], justify=justify, no_wrap=is_number, overflow="fold")
        for row in cells[1:]:
            table.add_row(*(row[place] for place in places))
        console.print(table)
        if terminal:
            console.print()


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """The places of a table's columns, as many as fit side by side; the first in each part."""
    gap, first = 2, min(widths[0], room // 3)
    parts, used = [[0]], first
    for place, width in enumerate(widths[1:], start=1):
        if len(parts[-1]) > 1 and used + gap + width > room:
            parts.append([0])
            used = first
        parts[-1].append(place)
        used += gap + width
    return parts


def print_sheets(sheets: Sequence[Sheet]) -> None:
    """Print some tables with their notes and commands."""
    for index, sheet in enumerate(sheets):
        sys.stdout.write("\n" if index else "")
        sys.stdout.flush()
        print_table(sheet.header, sheet.rows, title=sheet.title, numbers=True)
        lines = [*sheet.notes, *(f"  {command}" for command in sheet.commands)]
        if lines:
            print_text("\n".join(["", *map(printable, lines)]))


def print_runs(runs: Sequence[Measured], *, details: bool = False) -> None:
    """Print mean ± sample standard deviation over seeds, one table for each benchmark.

    With ``details`` a second table has the metrics that the paper does not compare.
    """
    for benchmark, here in by_benchmark(groups(runs)).items():
        tables = {"mean ± std over seeds, in %": main_metrics(here)}
        if details and other_metrics(here):
            tables["stability and plasticity"] = other_metrics(here)
        for about, metrics in tables.items():
            header = ["method", "seeds", *metrics.values()]
            rows = [texts for _, texts in group_rows(benchmark, here, metrics)]
            print_table(header, rows, title=f"{benchmark}: {about}", numbers=True)


def by_benchmark(together: Iterable[Group]) -> dict[str, list[Group]]:
    """Groups by benchmark, in the order in which each was first met."""
    found: dict[str, list[Group]] = {}
    for group in together:
        found.setdefault(group.benchmark, []).append(group)
    return found


def markdown_runs(together: Sequence[Group]) -> str:
    """The metrics that the paper compares as Markdown, one table for each benchmark, best in bold.

    Seconds are left out: they compare only between runs that had a device to themselves. Runs of
    part of a stream are left out where there are whole ones.
    """
    parts = []
    for benchmark, every in by_benchmark(together).items():
        here = [group for group in every if not group.is_part] or every
        metrics = {name: title for name, title in main_metrics(here).items() if name != "seconds"}
        best = [best_groups(name, here) for name in metrics]
        rows: list[list[str]] = []
        bold: set[tuple[int, int]] = set()
        for group, texts in group_rows(benchmark, here, metrics):
            if group is not None:
                place = here.index(group)
                bold |= {(len(rows), 2 + i) for i, places in enumerate(best) if place in places}
            rows.append([*texts, "" if group is None else ", ".join(group.devices)])
        header = ["method", "seeds", *metrics.values(), "device"]
        table = _markdown_table(header, rows, "---:|" * (len(header) - 2) + "---|", bold)
        parts.append(f"**{_markdown(benchmark)}**\n\n{table}\n")
    return "\n".join(parts)


def markdown_sheets(sheets: Sequence[Sheet]) -> str:
    """Tables as Markdown: notes as a list, commands as a block of code."""
    texts = []
    for sheet in sheets:
        table = _markdown_table(sheet.header, sheet.rows, "---:|" * (len(sheet.header) - 1))
        parts = [f"**{_markdown(sheet.title)}**", table]
        if sheet.notes:
            parts.append("\n".join(f"- {_markdown(note)}" for note in sheet.notes))
        if sheet.commands:
            parts.append("\n".join(["```", *map(printable, sheet.commands), "```"]))
        texts.append("\n\n".join(parts) + "\n")
    return "\n".join(texts)


def _markdown_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    aligned: str,
    bold: Collection[tuple[int, int]] = (),
) -> str:
    cells = [[_markdown(cell.strip()) for cell in row] for row in rows]
    for row, column in bold:
        cells[row][column] = f"**{cells[row][column]}**"
    lines = [_markdown_row(map(_markdown, header)), f"|---|{aligned}", *map(_markdown_row, cells)]
    return "\n".join(lines)


def _markdown_row(texts: Iterable[str]) -> str:
    return "|" + "|".join(f" {text} " if text else " " for text in texts) + "|"


def _markdown(text: str) -> str:
    """A text in Markdown: no HTML, no link, no emphasis, no end of a cell."""
    return re.sub(r"[\\*\[\]|]", r"\\\g<0>", html.escape(printable(text), quote=False))
