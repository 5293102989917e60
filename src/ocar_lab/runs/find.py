"""All runs below a folder; a damaged one does not hide the others."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ocar.errors import OcarError, RunError
from ocar.files import printable
from ocar_lab.runs.folder import CONFIG, METRICS, STATUS
from ocar_lab.runs.reading import Measured, Run, read_run
from ocar_lab.runs.results import Result, read_result
from ocar_lab.runs.studies import STUDY

T = TypeVar("T")

FILE_NAME = re.compile(r".+-[0-9a-f]{10}\.json")
"""The name of a result file, as opposed to other files in the same folder."""


HOW_TO_RUN = "Runs are written by ocar run, by default to runs, and by ocar demo, to demo."


class Found(NamedTuple):
    """What lies below a folder, each sorted."""

    runs: list[Path]  # folders
    results: list[Path]  # files
    studies: list[Path]  # folders


def find_all(root: Path) -> Found:
    """Every run, result file and study below a folder.

    A folder with metrics and without configuration counts as a run, so that its error is seen.

    Raises:
        RunError: The folder does not exist.
    """
    if not root.is_dir():
        raise RunError(f"There is no folder {root}. {HOW_TO_RUN}")
    found = Found([], [], [])
    for name, _, files in os.walk(root):
        folder = Path(name)
        if METRICS in files or {CONFIG, STATUS}.issubset(files):
            found.runs.append(folder)
        if STUDY in files:
            found.studies.append(folder)
        found.results.extend(folder / file for file in files if FILE_NAME.fullmatch(file))
    return Found(*map(sorted, found))


def run_folders(root: Path) -> list[Path]:
    """Every run folder below a folder, sorted.

    Raises:
        RunError: The folder does not exist.
    """
    return find_all(root).runs


def result_files(root: Path) -> list[Path]:
    """Every result file below a folder, sorted.

    Raises:
        RunError: The folder does not exist.
    """
    return find_all(root).results


def find_runs(root: Path) -> list[Run]:
    """Every run below a folder, sorted by path.

    Raises:
        RunError: The folder does not exist, or a run in it is damaged.
    """
    return [read_run(folder) for folder in run_folders(root)]


def read_folders(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and the errors of the others."""
    return read_each(read_run, folders)


def read_all(*roots: Path) -> tuple[list[Measured], list[str]]:
    """Every run that is stored or kept below some folders; one that is both counts once, as stored.

    Args:
        *roots: The folders, or result files.

    Returns:
        The runs that can be read, and the errors of the others.

    Raises:
        RunError: A folder does not exist.
    """
    for root in roots:
        if root.is_file() and root.suffix != ".json":
            raise RunError(f"{root} is a file. Must be a folder, or a file of ocar keep (.json).")
    found = [Found([], [root], []) if root.is_file() else find_all(root) for root in roots]
    # A folder may lie below another one.
    folders = {path.resolve(): path for own in found for path in own.runs}
    files = {path.resolve(): path for own in found for path in own.results}
    stored, errors = read_folders([*folders.values()])
    results, more = read_each(read_result, [*files.values()])
    runs, twice = together(stored, results)
    return runs, errors + more + twice


def together(stored: Sequence[Run], results: Sequence[Result]) -> tuple[list[Measured], list[str]]:
    """Stored and kept runs; one that is both counts once, as stored.

    A finished run that is stored twice, such as a copy of its folder, counts once too: as two
    seeds it would make the deviation smaller. The texts name the folders that are left out.
    """
    runs: list[Measured] = []
    errors: list[str] = []
    finished: dict[Any, Measured] = {}
    for run in (*stored, *(run for result in results for run in result.runs)):
        first = run if run.summary is None else finished.setdefault((run.key, run.seed), run)
        if first is run:
            runs.append(run)
        elif isinstance(run, Run):
            errors.append(
                f"{printable(str(run.path))} is left out: {printable(str(first.path))} has the "
                f"same configuration and seed {run.seed}. Move one of them away."
            )
    return runs, errors


def read_each(read: Callable[[Path], T], paths: Sequence[Path]) -> tuple[list[T], list[str]]:
    """What ``read`` returns for the paths that can be read, and the errors of the others."""
    found: list[T] = []
    errors = []
    with ThreadPoolExecutor() as pool:  # polars parses without holding Python's lock
        for reading in [pool.submit(read, path) for path in paths]:
            try:
                found.append(reading.result())
            except OcarError as error:
                errors.append(printable(str(error)))
    return found, errors
