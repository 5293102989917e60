"""``ocar show``: tables of stored runs and kept results."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocar.config import require_one_of
from ocar.errors import ConfigError, RunError
from ocar.files import write_whole
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.tables import markdown_runs, print_errors, print_json, print_runs
from ocar_lab.published import SOURCE
from ocar_lab.runs import Group, Measured, groups, read_all, rows
from ocar_lab.runs.find import HOW_TO_RUN
from ocar_lab.runs.texts import papers_numbers
from ocar_lab.runs.versions import EARLIER, earlier_settings

BEGIN, END = "<!-- ocar show: begin -->", "<!-- ocar show: end -->"
"""The lines of a document that enclose its tables."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show stored runs: mean ± sample std of every metric, with the paper's numbers below.

    The paper's numbers stand below its own methods only: not below a run with another curvature or
    memory, or of part of a stream. The learning rate and other numbers may differ.

    The metrics of a run folder are computed from its metrics.jsonl; the files of ocar keep are
    shown like the runs that they were made from.
    """

    dir: Path
    """A folder that contains runs or kept results, at any depth."""

    methods: tuple[str, ...] = ()
    """Methods to show; all without it."""

    usual: bool = False
    """Show only whole runs with the preset's settings and any number of columns in the sketch of
    the Fisher. Other splits and earlier presets are shown for a method that has nothing else."""

    json: bool = False
    """Print JSON: each run, each group of seeds with mean and std, the paper's numbers."""

    markdown: bool = False
    """Print the metrics that the paper compares as Markdown; runs of part of a stream are left out
    where there are whole ones."""

    into: Path | None = None
    """A document, such as README.md, whose tables are replaced instead of printed: they stand
    between two lines of comment, <!-- ocar show: begin --> and <!-- ocar show: end -->."""

    def __post_init__(self) -> None:
        if self.json and (self.markdown or self.into is not None):
            raise ConfigError("Invalid --json with --markdown or --into. Must be one of them.")


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Show the runs in a folder."""
    options = parse(Options, arguments, command=f"ocar {command}")
    runs, errors = read_all(options.dir)
    print_errors(errors)
    if not runs and not errors:
        raise RunError(f"There are no runs in {options.dir}. {HOW_TO_RUN}")
    labels = list(dict.fromkeys(run.label for run in runs))
    for name in options.methods:
        require_one_of("methods", name, labels)
    runs = [run for run in runs if not options.methods or run.label in options.methods]
    runs = _usual(runs) if options.usual else runs
    if options.into is not None:
        if errors:
            raise RunError(f"{options.into} is unchanged: some runs cannot be read.")
        changed = replace_tables(options.into, markdown_runs(groups(runs)))
        sys.stdout.write(f"{options.into}: tables {'replaced' if changed else 'unchanged'}\n")
    elif options.markdown:
        sys.stdout.write(markdown_runs(groups(runs)))
    elif options.json:
        print_json(document(runs))
    else:
        print_runs(runs, details=True)
    return 1 if errors else 0


def _usual(runs: Sequence[Measured]) -> list[Measured]:
    """The runs that ``--usual`` shows."""
    found = [
        run
        for run in runs
        if not run.changed.keys() - {"splits", "fisher", *earlier_settings(run.changed)}
    ]
    for names in ({"splits"}, set(EARLIER)):
        better = {(r.benchmark, r.label) for r in found if names.isdisjoint(r.changed)}
        found = [
            run
            for run in found
            if names.isdisjoint(run.changed) or (run.benchmark, run.label) not in better
        ]
    return found


def replace_tables(path: Path, tables: str) -> bool:
    """Replace what stands between the two marks of a document; whether that changes it."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.")
    document = path.read_text(encoding="utf-8")
    before, begin, rest = document.partition(f"{BEGIN}\n")
    inside, end, after = rest.partition(f"{END}\n")
    if not begin or not end or BEGIN in inside + after or END in before + after:
        raise ConfigError(f"{path} has no place for tables: one line {BEGIN!r}, later one {END!r}.")
    renewed = f"{before}{begin}\n{tables}\n{end}{after}"
    if renewed != document:
        write_whole(path, renewed.encode())
    return renewed != document


def document(runs: Sequence[Measured]) -> dict[str, Any]:
    """What ``--json`` prints: our metrics as fractions, the paper's in per cent."""
    return {
        "runs": rows(runs),
        "groups": [{**dataclasses.asdict(g), "paper": _paper(g)} for g in groups(runs)],
        "paper": SOURCE,
    }


def _paper(group: Group) -> dict[str, Any]:
    return {name: number._asdict() for name, number in papers_numbers(group).items()}
