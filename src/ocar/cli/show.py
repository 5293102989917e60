"""``ocar show``: what stored runs say, computed anew from their metrics."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocar.cli.arguments import parse
from ocar.cli.tables import print_runs
from ocar.errors import OcarError, RunError
from ocar.published import SOURCE, published
from ocar.runs import Run, groups, read_run, rows, run_folders


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show stored runs: mean ± sample std of every metric, the paper's numbers below.

    Everything is computed anew from metrics.jsonl.
    """

    dir: Path
    """A folder with runs in it, at any depth."""

    json: bool = False
    """Print JSON: each run, each group of seeds with mean and std, the paper's numbers."""


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Show the runs in a folder.

    Returns:
        0, or 1 if a run cannot be read.
    """
    options = parse(Options, arguments, command=f"ocar {command}")
    folders = run_folders(options.dir)
    if not folders:
        raise RunError(f"There are no runs in {options.dir}.")
    runs, errors = _read(folders)
    for error in errors:
        sys.stderr.write(f"ocar: {error}\n")
    if options.json:
        json.dump(document(runs), sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        print_runs(runs, details=True)
    return 1 if errors else 0


def _read(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs, and what is wrong with those that cannot be read."""
    runs, errors = [], []
    for folder in folders:
        try:
            run = read_run(folder)
            _ = run.state  # computes the metrics
        except OcarError as error:
            errors.append(str(error))
        else:
            runs.append(run)
    return runs, errors


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """What ``--json`` prints: plain values; metrics as parts of 1, the paper's in per cent."""
    return {
        "runs": rows(runs),
        "groups": [
            {
                **dataclasses.asdict(group),
                "paper": {
                    name: number._asdict()
                    for name, number in published(group.benchmark, group.label).items()
                },
            }
            for group in groups(runs)
        ],
        "paper": SOURCE,
    }
