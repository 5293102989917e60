"""``ocar show``: what stored runs and kept results say."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocar.errors import ConfigError, RunError
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.markdown import markdown, renew
from ocar_lab.cli.stored import read_all
from ocar_lab.cli.tables import print_runs
from ocar_lab.published import SOURCE, published
from ocar_lab.runs import Group, Measured, groups, rows


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show stored runs: mean ± sample std of every metric, the paper's numbers below.

    What a run folder says is computed anew from its metrics.jsonl; the files of ocar keep are
    shown as the runs that they were made of.
    """

    dir: Path
    """A folder with runs or kept results in it, at any depth."""

    json: bool = False
    """Print JSON: each run, each group of seeds with mean and std, the paper's numbers."""

    markdown: bool = False
    """Print the metrics that the paper compares as Markdown, of whole streams if there are any."""

    into: Path | None = None
    """A document, such as README.md, whose tables to renew instead of printing them: they stand
    between two lines of comment, <!-- ocar show: begin --> and <!-- ocar show: end -->."""

    def __post_init__(self) -> None:
        if self.json and (self.markdown or self.into is not None):
            raise ConfigError("Invalid --json with --markdown or --into. Must be one of them.")


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Show the runs in a folder.

    Returns:
        0, or 1 if a run cannot be read.
    """
    options = parse(Options, arguments, command=f"ocar {command}")
    runs, errors = read_all(options.dir)
    for error in errors:
        sys.stderr.write(f"ocar: {error}\n")
    if not runs and not errors:
        raise RunError(f"There are no runs in {options.dir}.")
    if options.into is not None:
        _renew(options.into, runs, whole=not errors)
    elif options.markdown:
        sys.stdout.write(markdown(groups(runs)))
    elif options.json:
        json.dump(document(runs), sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        print_runs(runs, details=True)
    return 1 if errors else 0


def _renew(path: Path, runs: Sequence[Measured], *, whole: bool) -> None:
    if not whole:
        raise RunError(f"{path} is left as it was: some runs cannot be read.")
    changed = renew(path, markdown(groups(runs)))
    sys.stdout.write(f"{path}: {'tables renewed' if changed else 'tables as they were'}\n")


def _printed(group: Group) -> dict[str, Any]:
    printed = published(group.benchmark, group.label)
    return {name: number._asdict() for name, number in printed.items()}


def document(runs: Sequence[Measured]) -> dict[str, Any]:
    """What ``--json`` prints: plain values; metrics as parts of 1, the paper's in per cent."""
    return {
        "runs": rows(runs),
        "groups": [
            {
                **dataclasses.asdict(group),
                "paper": {} if group.is_part else _printed(group),
            }
            for group in groups(runs)
        ],
        "paper": SOURCE,
    }
