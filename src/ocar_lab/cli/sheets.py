"""A table with what is to be said of it, for a terminal or as Markdown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ocar_lab.cli.markdown import table_line
from ocar_lab.cli.tables import print_table


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table as texts."""

    title: str
    """A line above."""

    header: tuple[str, ...]
    """Titles of the columns."""

    rows: tuple[tuple[str, ...], ...]
    """Their texts; all columns but the first hold numbers."""

    notes: tuple[str, ...] = ()
    """Lines below."""

    commands: tuple[str, ...] = ()
    """Lines for a shell, which come last."""


def print_sheets(sheets: Sequence[Sheet]) -> None:
    """Print tables to standard output."""
    for index, sheet in enumerate(sheets):
        sys.stdout.write("\n" if index else "")
        sys.stdout.flush()
        print_table(sheet.header, sheet.rows, title=sheet.title, numbers=True)
        lines = [*sheet.notes, *(f"  {command}" for command in sheet.commands)]
        sys.stdout.write("".join(f"{line}\n" for line in ["", *lines] if lines))


def markdown_sheets(sheets: Sequence[Sheet]) -> str:
    """Tables as Markdown: notes as a list, commands as a block of code."""
    return "\n".join(map(_markdown, sheets))


def _markdown(sheet: Sheet) -> str:
    aligned = "|---|" + "---:|" * (len(sheet.header) - 1)
    parts = [
        f"**{sheet.title}**",
        "\n".join([table_line(sheet.header), aligned, *map(table_line, sheet.rows)]),
    ]
    if sheet.notes:
        parts.append("\n".join(f"- {note}" for note in sheet.notes))
    if sheet.commands:
        parts.append("\n".join(["```", *sheet.commands, "```"]))
    return "\n\n".join(parts) + "\n"
