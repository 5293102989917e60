"""``ocar keep``: what is worth keeping of finished runs, as small files under results/."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ocar.errors import OcarError, RunError
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.stored import read_folders
from ocar_lab.runs import Run, keep, run_folders


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keep the results of finished runs, one small file a configuration.

    A file holds the configuration, the seeds with all their metrics, device, versions, revision
    of the source, and the command; seeds that it held before stay. ocar show reads it.
    """

    runs: Path
    """A folder with runs in it, at any depth."""

    to: Path = Path("results")
    """Folder for the results."""


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Keep the results of the runs in a folder.

    Returns:
        0, or 1 if a run is not finished or cannot be read; the others are kept all the same.
    """
    options = parse(Options, arguments, command=f"ocar {command}")
    folders = run_folders(options.runs)
    if not folders:
        raise RunError(f"There are no runs in {options.runs}.")
    runs, errors = read_folders(folders)
    finished = [run for run in runs if run.summary is not None]
    errors += [
        f"{run.path} is left out: it is not finished but {run.state}. The same `ocar run` goes on."
        for run in runs
        if run.summary is None
    ]
    for together in _by_configuration(finished):
        try:
            result = keep(together, options.to)
        except OcarError as error:
            errors.append(str(error))
            continue
        given = {run.seed for run in together}
        before = [seed for seed in result.seeds if seed not in given]
        beside = f", beside {_listed(before)} of before" if before else ""
        sys.stdout.write(f"{result.path}: seeds {_listed(sorted(given))}{beside}\n")
    for text in errors:
        sys.stderr.write(f"ocar: {text}\n")
    return 1 if errors else 0


def _by_configuration(runs: Sequence[Run]) -> list[list[Run]]:
    together: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        together.setdefault((run.benchmark, run.label, run.hash), []).append(run)
    return list(together.values())


def _listed(seeds: Sequence[int]) -> str:
    return " ".join(map(str, seeds))
