"""Which executor it is, from what a user says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ocar.config import require
from ocar.errors import ConfigError
from ocar_lab.experiment.executors.base import Executor, Stop, never
from ocar_lab.experiment.executors.inline import Inline
from ocar_lab.experiment.executors.processes import Processes
from ocar_lab.experiment.executors.threads import Threads


@dataclass(frozen=True, kw_only=True)
class Workers:
    """How many pieces of work are done at a time, and where."""

    count: int | None = 1
    """How many; with 1 they are done in this process, unless there is a cluster, which None
    leaves to decide."""

    ray: str | None = None
    """Address of a Ray cluster, or ``"auto"`` for the one of this machine."""

    cpus: float = 1
    """Cores of the cluster that each piece of work takes."""

    gpus: float = 0
    """GPUs of the cluster that each piece of work takes; a part of one is allowed."""

    def __post_init__(self) -> None:
        require("workers", self.count, self.count is None or self.count >= 1, "at least 1")
        require("cpus", self.cpus, self.cpus >= 0, "at least 0")
        require("gpus", self.gpus, self.gpus >= 0, "at least 0")
        if self.ray is None and (self.gpus or self.count is None):
            raise ConfigError("Without a Ray cluster there is a number of workers and no GPUs.")


def make_executor(
    workers: Workers, *, on_gpu: bool, is_ahead: Callable[[Any], bool], stop: Stop = never
) -> Executor:
    """The executor that does it.

    Args:
        workers: How many, and where.
        on_gpu: Whether the work is for a GPU of this machine.
        is_ahead: Whether a message shows that the first piece of work on a GPU has done all kinds
            of things, see :class:`~ocar_lab.experiment.executors.threads.Threads`.
        stop: Asked by work in this process whether to stop.
    """
    if workers.ray is not None:
        from ocar_lab.experiment.executors.cluster import Cluster

        return Cluster(
            address=workers.ray, workers=workers.count, cpus=workers.cpus, gpus=workers.gpus
        )
    assert workers.count is not None
    if workers.count == 1:
        return Inline(stop=stop)
    if on_gpu:
        return Threads(workers.count, is_ahead=is_ahead, stop=stop)
    return Processes(workers.count)
