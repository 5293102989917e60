"""Who does the work: this process, its threads, other processes, or a Ray cluster."""

from ocar_lab.experiment.executors.base import (
    INTERVAL,
    Executor,
    Heard,
    Over,
    Said,
    Stop,
    Work,
    do_all,
)
from ocar_lab.experiment.executors.choice import Workers, make_executor
from ocar_lab.experiment.executors.inline import Inline
from ocar_lab.experiment.executors.processes import Processes
from ocar_lab.experiment.executors.threads import Threads

__all__ = [
    "INTERVAL",
    "Executor",
    "Heard",
    "Inline",
    "Over",
    "Processes",
    "Said",
    "Stop",
    "Threads",
    "Work",
    "Workers",
    "do_all",
    "make_executor",
]
