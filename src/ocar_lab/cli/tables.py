"""Tables of stored runs for people to read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from ocar.errors import MissingPackageError
from ocar_lab.runs import Group, Measured, groups
from ocar_lab.runs.texts import (
    DETAILS,
    MAIN,
    NOT_PARTS,
    describe,
    group_rows,
    main_metrics,
    other_metrics,
    seeds_text,
    spread_text,
)

__all__ = [
    "DETAILS",
    "MAIN",
    "NOT_PARTS",
    "describe",
    "group_rows",
    "main_metrics",
    "print_groups",
    "print_runs",
    "print_table",
    "seeds_text",
    "spread_text",
]


def print_runs(runs: Sequence[Measured], *, details: bool = False) -> None:
    """Print one table a benchmark, with mean ± sample standard deviation over seeds.

    Args:
        runs: The runs.
        details: A second table with the metrics that the paper does not compare.
    """
    together = groups(runs)
    for benchmark in dict.fromkeys(group.benchmark for group in together):
        here = [group for group in together if group.benchmark == benchmark]
        title = f"{benchmark}: mean ± std over seeds, in %"
        print_groups(benchmark, here, main_metrics(here), title=title)
        others = other_metrics(here)
        if details and others:
            print_groups(benchmark, here, others, title=f"{benchmark}: stability and plasticity")


def print_groups(
    benchmark: str, together: Sequence[Group], metrics: Mapping[str, str], *, title: str
) -> None:
    """Print the table of one benchmark.

    Args:
        benchmark: Its name.
        together: The rows.
        metrics: The columns, with their titles.
        title: A line above.
    """
    header = ["method", "seeds", *metrics.values()]
    rows = [texts for _, texts in group_rows(benchmark, together, metrics)]
    print_table(header, rows, title=title, numbers=True)


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    numbers: bool = False,
) -> None:
    """Print a table to standard output: fitted to a terminal, plain and unbroken elsewhere.

    Args:
        header: Titles of the columns.
        rows: Their texts.
        title: A line above.
        numbers: Whether all columns but the first hold numbers.
    """
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError as error:
        raise MissingPackageError(
            'The command line needs tyro and rich: pip install "ocar[cli]"'
        ) from error
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 1000, highlight=False, soft_wrap=not terminal)
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
    for index, column in enumerate(header):
        table.add_column(column, justify="right" if numbers and index else "left")
    for row in rows:
        table.add_row(*row)
    if title:
        console.print(title, markup=False, style="bold")
    console.print(table)
