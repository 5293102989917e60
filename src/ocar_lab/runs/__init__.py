"""Run folders: write one, read many, and put them into one table or one small file."""

from ocar_lab.runs.find import find_runs, read_all, read_folders, result_files, run_folders
from ocar_lab.runs.folder import RunFolder
from ocar_lab.runs.paired import Comparison, Interval, Paired, compare, mean_interval
from ocar_lab.runs.provenance import describe_process
from ocar_lab.runs.reading import Measured, Run, is_finished, read_run
from ocar_lab.runs.results import KeptRun, Result, keep, read_result
from ocar_lab.runs.table import Group, Spread, groups, rows

__all__ = [
    "Comparison",
    "Group",
    "Interval",
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
    "is_finished",
    "keep",
    "mean_interval",
    "read_all",
    "read_folders",
    "read_result",
    "read_run",
    "result_files",
    "rows",
    "run_folders",
]
