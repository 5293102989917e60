"""Which executor does the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ocar.config import require
from ocar.errors import ConfigError
from ocar_lab.experiment.executors.base import Executor
from ocar_lab.experiment.executors.local import Inline, Threads
from ocar_lab.experiment.executors.processes import Processes


@dataclass(frozen=True, kw_only=True)
class Workers:
    """How many pieces of work are done at a time, and where.

    A count of 1 is this process, unless there is a cluster; None is as many as a cluster has room
    for.
    """

    count: int | None = 1
    ray: str | None = None  #: Address of a Ray cluster; ``"auto"`` for the one of this machine.
    cpus: float = 1  #: Cores of the cluster for each piece of work.
    gpus: float = 0  #: GPUs of the cluster for each piece of work; fractions are allowed.
    ranks: int = 1  #: Processes that do each piece of work together, on this machine.

    def __post_init__(self) -> None:
        require("workers", self.count, self.count is None or self.count >= 1, "at least 1")
        require("cpus", self.cpus, self.cpus >= 0, "at least 0")
        require("gpus", self.gpus, self.gpus >= 0, "at least 0")
        if self.ray is None and (self.gpus or self.count is None):
            raise ConfigError("Without a Ray cluster there is a number of workers and no GPUs.")

    def executor(self, *, on_gpu: bool, is_ahead: Callable[[Any], bool]) -> Executor:
        """The executor for these workers.

        Args:
            on_gpu: Whether the work is for a GPU of this machine.
            is_ahead: Whether a message shows that a piece of work has trained and evaluated, see
                :class:`~ocar_lab.experiment.executors.local.Threads`.
        """
        if self.ray is not None:
            from ocar_lab.experiment.executors.cluster import Cluster

            return Cluster(address=self.ray, workers=self.count, cpus=self.cpus, gpus=self.gpus)
        if self.count is None or self.count == 1:
            return Inline()
        return Threads(self.count, is_ahead=is_ahead) if on_gpu else Processes(self.count)
