"""Who does the work: this process, its threads, other processes, or a Ray cluster."""

from ocar_lab.experiment.executors.base import INTERVAL, Executor, Stop, Work, WorkError, do_all
from ocar_lab.experiment.executors.choice import Workers
from ocar_lab.experiment.executors.local import Inline, Threads
from ocar_lab.experiment.executors.processes import Processes

__all__ = [
    "INTERVAL",
    "Executor",
    "Inline",
    "Processes",
    "Stop",
    "Threads",
    "Work",
    "WorkError",
    "Workers",
    "do_all",
]
