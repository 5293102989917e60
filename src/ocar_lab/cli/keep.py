"""``ocar keep``: the results of finished runs, as small files under results/."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ocar.errors import OcarError, RunError
from ocar_lab.cli.arguments import parse, require_folder
from ocar_lab.cli.tables import print_errors, print_text
from ocar_lab.runs import keep, read_folders, run_folders
from ocar_lab.runs.find import HOW_TO_RUN
from ocar_lab.runs.paired import listed
from ocar_lab.runs.table import by_configuration


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keep the results of finished runs, one small file for each configuration.

    A file holds the configuration, the seeds with all their metrics, device, versions, revision
    of the source, and the command. Seeds that it already has stay. ocar show reads it.
    """

    runs: Path
    """A folder that contains runs, at any depth."""

    to: Path = Path("results")
    """Folder for the results."""

    def __post_init__(self) -> None:
        require_folder("--to", self.to)


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Keep the results of a folder; 1 if a run is not finished or cannot be read."""
    options = parse(Options, arguments, command=f"ocar {command}")
    folders = run_folders(options.runs)
    if not folders:
        raise RunError(f"There are no runs in {options.runs}. {HOW_TO_RUN}")
    runs, errors = read_folders(folders)
    errors += [
        f"{run.path} is left out: it is not finished but {run.state}. The same `ocar run` goes on."
        for run in runs
        if run.summary is None
    ]
    for together in by_configuration(run for run in runs if run.summary is not None):
        try:
            result = keep(together, options.to)
        except OcarError as error:
            errors.append(str(error))
            continue
        given = {run.seed for run in together}
        before = set(result.seeds) - given
        added = f", added to {listed(before)}" if before else ""
        print_text(f"{result.path}: seeds {listed(given)}{added}")
    print_errors(errors)
    return 1 if errors else 0
