"""``ocar paper table1``, ``clear`` and ``times``: the paper's tables with ours beside them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ocar.errors import ConfigError
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.paper_document import table_document, times_document
from ocar_lab.cli.paper_sheets import table_sheet, times_sheet
from ocar_lab.cli.tables import Sheet, markdown_sheets, print_sheets
from ocar_lab.paper import clear_tables, table1, times_table
from ocar_lab.published import SOURCE
from ocar_lab.runs import Measured, read_all

RESULTS = Path("results")
"""Where ``ocar keep`` writes."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every table of the paper can be asked for."""

    results: Path = RESULTS
    """A folder with kept results or runs in it, at any depth."""

    json: bool = False
    """Print JSON: every number, the claims, the commands for what is missing."""

    markdown: bool = False
    """Print Markdown."""

    def __post_init__(self) -> None:
        if self.json and self.markdown:
            raise ConfigError("Invalid --json with --markdown. Must be one of them.")


@dataclass(frozen=True, kw_only=True)
class Table1Options(Options):
    """Table 1 of the paper: its numbers, ours, and the difference in standard deviations.

    The difference is (ours - paper) / sqrt(s_paper² + s_ours²), with means over seeds and sample
    standard deviations s. One seed of ours has no spread: then s_paper alone is taken, marked by °.
    What is more than two standard deviations off is marked by !.

    A row is made of runs that follow the protocol with the published settings; of several
    configurations the one with the most seeds is taken, and the others are named.
    """

    benchmark: Literal["split-cifar100", "split-tinyimagenet"] = "split-cifar100"
    """Which half of the table."""


@dataclass(frozen=True, kw_only=True)
class ClearOptions(Options):
    """The paper's table of Online CLEAR: its numbers, ours, the difference in standard deviations.

    The difference is (ours - paper) / sqrt(s_paper² + s_ours²), with means over seeds and sample
    standard deviations s. One seed of ours has no spread: then s_paper alone is taken, marked by °.
    What is more than two standard deviations off is marked by !.

    PACS stands in for CLEAR below it: the same methods on a smaller domain-incremental benchmark,
    for which the paper has no numbers. Where no settings were selected, those of the runs count.
    """


@dataclass(frozen=True, kw_only=True)
class TimesOptions(Options):
    """The paper's table of training times: the first task of Split-CIFAR100, without evaluation.

    The paper's seconds are of a V100, so what compares is the time over that of ER. Ours are all
    of one device, the one with the most of the methods, and of runs that had none beside them, as
    the commands for what is missing do.
    """


KINDS: dict[str, type[Options]] = {
    "table1": Table1Options,
    "clear": ClearOptions,
    "times": TimesOptions,
}


def main(name: str, arguments: list[str], *, debug: bool) -> int:
    """Show a table of the paper.

    Returns:
        0, or 1 if a run cannot be read.
    """
    options = parse(KINDS[name], arguments, command=f"ocar paper {name}")
    # Without any results yet, the table says how to make them.
    begun = options.results.exists() or options.results != RESULTS
    runs, errors = read_all(options.results) if begun else ([], [])
    for error in errors:
        sys.stderr.write(f"ocar: {error}\n")
    document, sheets = _make(options, runs)
    if options.json:
        json.dump({"paper": SOURCE, **document}, sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
    elif options.markdown:
        sys.stdout.write(markdown_sheets(sheets))
    else:
        print_sheets(sheets)
    return 1 if errors else 0


def _make(options: Options, runs: list[Measured]) -> tuple[dict[str, Any], list[Sheet]]:
    """What is asked for as plain values and as texts."""
    if isinstance(options, TimesOptions):
        times = times_table(runs)
        return times_document(times), [times_sheet(times)]
    if isinstance(options, Table1Options):
        tables = [table1(runs, options.benchmark)]
    else:
        tables = [*clear_tables(runs)]
    return table_document(tables), [table_sheet(table) for table in tables]
