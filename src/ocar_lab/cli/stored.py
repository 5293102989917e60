"""Stored runs and kept results as the commands read them: the bad ones do not hide the others."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ocar.errors import OcarError
from ocar_lab.runs import KeptRun, Measured, Run, read_result, read_run, result_files, run_folders


def read_folders(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Some runs, with their metrics computed.

    Args:
        folders: Their folders.

    Returns:
        The runs, and what is wrong with those that cannot be read.
    """
    runs, errors = [], []
    with _no_collector():
        for folder in folders:
            try:
                run = read_run(folder)
                _ = run.state  # computes the metrics
            except OcarError as error:
                errors.append(str(error))
            else:
                runs.append(run)
    return runs, errors


@contextmanager
def _no_collector() -> Iterator[None]:
    """Python's search for cycles, which millions of small objects set off, finds none in them."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def read_results(files: Sequence[Path]) -> tuple[list[KeptRun], list[str]]:
    """Some kept runs.

    Args:
        files: Files of results.

    Returns:
        The runs, and what is wrong with the files that cannot be read.
    """
    runs: list[KeptRun] = []
    errors = []
    for file in files:
        try:
            runs += read_result(file).runs
        except OcarError as error:
            errors.append(str(error))
    return runs, errors


def read_all(root: Path) -> tuple[list[Measured], list[str]]:
    """Every run that is stored or kept in a folder; one that is both counts once, as stored.

    Args:
        root: The folder; what is below it counts at any depth. Or a file that ocar keep wrote.

    Returns:
        The runs, and what is wrong with those that cannot be read.

    Raises:
        RunError: The folder does not exist.
    """
    if root.is_file():
        only, wrong = read_results([root])
        return [*only], wrong
    runs, errors = read_folders(run_folders(root))
    kept, more = read_results(result_files(root))
    stored = {_key(run) for run in runs if run.summary is not None}
    return [*runs, *(run for run in kept if _key(run) not in stored)], errors + more


def _key(run: Measured) -> tuple[str, str, str, int]:
    return run.benchmark, run.label, run.hash, run.seed
