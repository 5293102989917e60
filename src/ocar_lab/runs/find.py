"""All runs below a folder; a damaged one does not hide the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ocar.errors import OcarError, RunError
from ocar.files import printable
from ocar_lab.runs.folder import CONFIG, METRICS, STATUS
from ocar_lab.runs.reading import Measured, Run, read_run
from ocar_lab.runs.results import read_result

T = TypeVar("T")

FILE_NAME = re.compile(r".+-[0-9a-f]{10}\.json")
"""The name of a result file, as opposed to other files in the same folder."""


HOW_TO_RUN = "Runs are written by ocar run, by default to runs, and by ocar demo, to demo."


def run_folders(root: Path) -> list[Path]:
    """Every run folder below a folder, sorted.

    Raises:
        RunError: The folder does not exist.
    """
    folders = sorted(config.parent for config in _existing(root).rglob(CONFIG))
    return [f for f in folders if (f / METRICS).exists() or (f / STATUS).exists()]


def result_files(root: Path) -> list[Path]:
    """Every result file below a folder, sorted.

    Raises:
        RunError: The folder does not exist.
    """
    files = _existing(root).rglob("*.json")
    return sorted(path for path in files if FILE_NAME.fullmatch(path.name))


def _existing(root: Path) -> Path:
    if not root.is_dir():
        raise RunError(f"There is no folder {root}. {HOW_TO_RUN}")
    return root


def find_runs(root: Path) -> list[Run]:
    """Every run below a folder, sorted by path.

    Raises:
        RunError: The folder does not exist, or a run in it is damaged.
    """
    return [read_run(folder) for folder in run_folders(root)]


def read_folders(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Some runs, and the errors of those that cannot be read."""
    return _read_each(read_run, folders)


def read_all(root: Path) -> tuple[list[Measured], list[str]]:
    """Every run that is stored or kept below a folder; one that is both counts once, as stored.

    Args:
        root: The folder, or one result file.

    Returns:
        The runs, and the errors of those that cannot be read.

    Raises:
        RunError: The folder does not exist.
    """
    folders, files = ([], [root]) if root.is_file() else (run_folders(root), result_files(root))
    stored, errors = read_folders(folders)
    results, more = _read_each(read_result, files)
    finished = {(run.key, run.seed) for run in stored if run.summary is not None}
    kept = [run for result in results for run in result.runs]
    return [*stored, *(r for r in kept if (r.key, r.seed) not in finished)], errors + more


def _read_each(read: Callable[[Path], T], paths: Sequence[Path]) -> tuple[list[T], list[str]]:
    found: list[T] = []
    errors = []
    with ThreadPoolExecutor() as pool:  # polars parses without holding Python's lock
        for reading in [pool.submit(read, path) for path in paths]:
            try:
                found.append(reading.result())
            except OcarError as error:
                errors.append(printable(str(error)))
    return found, errors
