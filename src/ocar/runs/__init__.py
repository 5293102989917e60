"""The run folder: configuration, metrics, checkpoint, status; many runs as one table."""

from ocar.runs.folder import RunFolder
from ocar.runs.provenance import describe_process
from ocar.runs.reading import Run, find_runs, read_run, run_folders
from ocar.runs.table import Group, Spread, groups, rows

__all__ = [
    "Group",
    "Run",
    "RunFolder",
    "Spread",
    "describe_process",
    "find_runs",
    "groups",
    "read_run",
    "rows",
    "run_folders",
]
