"""Many pieces of work on a Ray cluster.

Each is a Ray task that is never tried again, and streams its messages back. What is said to it in
the other direction, the request to stop, stands on a board: an actor on the node of this process,
which the tasks look at now and then. So a node that is lost takes with it what ran on it and no
more.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ocar.errors import ConfigError, MissingPackageError
from ocar_lab.experiment.executors.base import INTERVAL, Executor, Heard, Over, Stop, Work, follow

LOOK = 0.5
"""Seconds between two looks at the board."""

PATIENCE = 10.0
"""Seconds to wait for the head node to answer."""


class Cluster(Executor):
    """Does work on a Ray cluster.

    The nodes need this package and the data; runs also need a folder that they all reach.

    Args:
        address: Where the cluster is; ``"auto"`` for the one of this machine.
        workers: Most pieces of work at a time; by default as many as the cluster has room for.
        cpus: Cores for each.
        gpus: GPUs for each; 0.25 lets four share one.

    Raises:
        ConfigError: There is no such cluster, or none of its nodes has room for one.
        MissingPackageError: Ray is not installed.
    """

    def __init__(
        self, *, address: str, workers: int | None = None, cpus: float = 1, gpus: float = 0
    ) -> None:
        self.workers, self.cpus, self.gpus = workers, cpus, gpus
        self._ray = _import_ray()
        self._connected = not self._ray.is_initialized()
        if self._connected:
            _connect(self._ray, address)
        try:
            self._check()
            self._board = self._post_board()
        except BaseException:
            self._disconnect()
            raise
        self._jobs: dict[Any, int] = {}
        """The job of each stream of messages."""

    @property
    def room(self) -> int:
        """What the cluster has room for now, nodes come and go, less what is under way."""
        most = max(1, sum(self._fits(node) for node in self._nodes()))
        return (most if self.workers is None else min(most, self.workers)) - len(self._jobs)

    def submit(self, job: int, work: Work) -> None:
        """Give a piece of work to the cluster."""
        task = self._ray.remote(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0, num_returns="streaming"
        )(_serve)
        self._jobs[task.remote(self._board, job, work)] = job

    def ask_to_stop(self, job: int) -> None:
        """The work hears of it when it asks."""
        if job in self._jobs.values():
            self._board.post.remote(job)

    def listen(self) -> Sequence[Heard]:
        """A message of each that has one."""
        if not self._jobs:
            return []
        streams = list(self._jobs)
        ready, _ = self._ray.wait(
            streams, num_returns=len(streams), timeout=INTERVAL, fetch_local=False
        )
        return [self._receive(stream) for stream in ready]

    def close(self, *, abandon: bool) -> None:
        """End what is under way."""
        for stream in self._jobs:
            self._ray.cancel(stream, force=True)
        self._jobs.clear()
        self._ray.kill(self._board)
        self._disconnect()

    def _receive(self, stream: Any) -> Heard:
        try:
            heard: Heard = self._ray.get(next(stream))
        except StopIteration:
            heard = Over(job=self._jobs[stream])
        except self._ray.exceptions.RayError as error:
            first = str(error).strip().partition("\n")[0]
            text = f"Its worker in the cluster died: {type(error).__name__}: {first}"
            heard = Over(job=self._jobs[stream], error=text, details=str(error))
        if isinstance(heard, Over):
            del self._jobs[stream]
        return heard

    def _nodes(self) -> list[dict[str, float]]:
        """What each living node has."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _fits(self, node: dict[str, float]) -> int:
        """How many pieces of work a node can do at a time."""
        needs = {"CPU": self.cpus, "GPU": self.gpus}
        # Ray counts in units of 1/10000.
        return min(
            (int(node.get(n, 0) / need + 1e-4) for n, need in needs.items() if need), default=1
        )

    def _check(self) -> None:
        if not any(self._fits(node) for node in self._nodes()):
            raise ConfigError(
                f"No node of the Ray cluster has {self.cpus:g} cores and {self.gpus:g} GPUs, "
                "which each worker is to have."
            )

    def _post_board(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = self._ray.get_runtime_context().get_node_id()
        strategy = NodeAffinitySchedulingStrategy(here, soft=False)
        return self._ray.remote(num_cpus=0, scheduling_strategy=strategy)(_Board).remote()

    def _disconnect(self) -> None:
        if self._connected:
            self._ray.shutdown()


class _Board:
    """Where the jobs stand that are to stop."""

    def __init__(self) -> None:
        self._jobs: set[int] = set()

    def post(self, job: int) -> None:
        self._jobs.add(job)

    def has(self, job: int) -> bool:
        return job in self._jobs


def _serve(board: Any, job: int, work: Work) -> Iterator[Heard]:
    """What a task of the cluster does."""
    yield from follow(job, work, _looking_at(board, job))


def _looking_at(board: Any, job: int) -> Stop:
    """Whether a job is to stop, looked up not too often."""
    import ray

    looked, asked = -LOOK, False

    def stop() -> bool:
        nonlocal looked, asked
        if not asked and time.monotonic() - looked >= LOOK:
            looked = time.monotonic()
            asked = bool(ray.get(board.has.remote(job)))
        return asked

    return stop


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError('A Ray cluster needs ray: pip install "ocar[ray]"') from error
    return ray


def _connect(ray: Any, address: str) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address != "auto":
            _check_address(address)
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"There is no Ray cluster at {address!r}. To start one: ray start --head"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # which Ray has put its own in the place of


def _check_address(address: str) -> None:
    """See that somebody is there, for whom Ray would wait for minutes.

    Raises:
        ConfigError: It is no address.
        OSError: Nobody is there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ConfigError(
            f"Invalid address {address!r} of a Ray cluster. Must be auto, or HOST:PORT of its head "
            "node, such as 10.0.0.1:6379."
        )
    socket.create_connection((host, int(port)), timeout=PATIENCE).close()
