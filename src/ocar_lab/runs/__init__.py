"""The run folder: configuration, metrics, checkpoint, status; many runs as one table or file."""

from ocar_lab.runs.folder import RunFolder
from ocar_lab.runs.paired import Comparison, Paired, compare
from ocar_lab.runs.provenance import describe_process
from ocar_lab.runs.reading import Run, find_runs, read_run, run_folders
from ocar_lab.runs.results import KeptRun, Result, keep, read_result, result_files
from ocar_lab.runs.table import Group, Measured, Spread, groups, rows

__all__ = [
    "Comparison",
    "Group",
    "KeptRun",
    "Measured",
    "Paired",
    "Result",
    "Run",
    "RunFolder",
    "Spread",
    "compare",
    "describe_process",
    "find_runs",
    "groups",
    "keep",
    "read_result",
    "read_run",
    "result_files",
    "rows",
    "run_folders",
]
