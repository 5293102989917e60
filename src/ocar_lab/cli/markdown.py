"""Tables of runs as Markdown, and the place in a document that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ocar.errors import ConfigError
from ocar.files import write_whole
from ocar_lab.cli.tables import group_rows, main_metrics
from ocar_lab.runs import Group

BEGIN, END = "<!-- ocar show: begin -->", "<!-- ocar show: end -->"
"""The lines of a document between which the tables stand."""


def markdown(together: Sequence[Group]) -> str:
    """One table a benchmark of the metrics that the paper compares, but for the time.

    Seconds compare only between runs that had the same device alone, which a document cannot tell.
    Runs of a part of a stream are left out where there are runs of the whole.

    Args:
        together: The rows, each the runs of one configuration.
    """
    parts = []
    for benchmark in dict.fromkeys(group.benchmark for group in together):
        every = [group for group in together if group.benchmark == benchmark]
        here = [group for group in every if not group.is_part] or every
        metrics = {name: title for name, title in main_metrics(here).items() if name != "seconds"}
        header = ["method", "seeds", *metrics.values(), "device"]
        rows = [
            [*texts, "" if group is None else ", ".join(group.devices)]
            for group, texts in group_rows(benchmark, here, metrics)
        ]
        aligned = "|---|" + "---:|" * (len(header) - 2) + "---|"
        lines = [table_line(header), aligned, *map(table_line, rows)]
        parts.append(f"**{benchmark}**\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def table_line(cells: Sequence[str]) -> str:
    """One line of a table; bars inside a cell are written so that they end none."""
    texts = [cell.strip().replace("|", "\\|") for cell in cells]
    return "|" + "|".join(f" {text} " if text else " " for text in texts) + "|"


def renew(path: Path, text: str) -> bool:
    """Put a text between the two marks of a document, in the place of what is there.

    Args:
        path: The document.
        text: Whole lines.

    Returns:
        Whether the document has changed.

    Raises:
        ConfigError: The document has not one mark of each kind, in their order.
    """
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.")
    document = path.read_text(encoding="utf-8")
    before, begin, rest = document.partition(f"{BEGIN}\n")
    inside, end, after = rest.partition(f"{END}\n")
    if not begin or not end or BEGIN in inside + after or END in before + after:
        raise ConfigError(f"{path} has no place for tables: one line {BEGIN!r}, later one {END!r}.")
    renewed = f"{before}{begin}\n{text}\n{end}{after}"
    if renewed != document:
        write_whole(path, renewed.encode())
    return renewed != document
