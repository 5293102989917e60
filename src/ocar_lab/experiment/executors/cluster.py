"""Work on a Ray cluster.

Each piece of work is a Ray task that is never retried and streams its messages back. Requests to
stop are posted on a board: an actor on the node of this process, which the tasks ask now and then.
A node that is lost takes only the work with it that ran on it.
"""

from __future__ import annotations

import itertools
import signal
import socket
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

from ocar.errors import ConfigError
from ocar_lab.experiment.executors import base
from ocar_lab.experiment.executors.base import INTERVAL, Over, Stop, Work, WorkError
from ocar_lab.optional import needed

LOOK = 0.5
"""Seconds between two questions to the board."""

PATIENCE = 10.0
"""Seconds to wait for the head node to answer."""


class Cluster(base.Executor):
    """Does work on a Ray cluster.

    The nodes need this package and the data; runs also need a folder that all nodes share.

    Args:
        address: Address of the cluster; ``"auto"`` for the one of this machine.
        workers: Pieces of work at a time; by default as many as the cluster has room for now.
        cpus: Cores for each.
        gpus: GPUs for each; 0.25 lets four share one.

    Raises:
        ConfigError: There is no such cluster, or no node has room for one piece of work.
    """

    def __init__(
        self, *, address: str, workers: int | None = None, cpus: float = 1, gpus: float = 0
    ) -> None:
        self.cpus, self.gpus = cpus, gpus
        with needed("A Ray cluster", "ray", extra="ray"):
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        self._ray: Any = ray
        self._connected = not self._ray.is_initialized()
        if self._connected:
            _connect(self._ray, address)
        try:
            room = self._room()
            self.workers = min(workers or room, room)
            here = ray.get_runtime_context().get_node_id()
            strategy = NodeAffinitySchedulingStrategy(here, soft=False)
            board = self._ray.remote(num_cpus=0, scheduling_strategy=strategy)(_Board)
            self._board = board.remote()
        except BaseException:
            self._disconnect()
            raise
        self._numbers = itertools.count()
        self._streams: set[Any] = set()

    def run(self, work: Work, stop: Stop) -> Generator[Any, None, None]:
        """Do a piece of work on the cluster."""
        task = self._ray.remote(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0, num_returns="streaming"
        )(_serve)
        number, asked = next(self._numbers), False
        stream = task.remote(self._board, number, work)
        self._streams.add(stream)
        try:
            while True:
                if not asked and stop():
                    asked = True
                    self._board.post.remote(number)
                ready, _ = self._ray.wait([stream], timeout=INTERVAL, fetch_local=False)
                if ready:
                    message = self._ray.get(next(stream))
                    if isinstance(message, Over):
                        return message.check()
                    yield message
        except StopIteration:
            pass
        except GeneratorExit:
            self._board.post.remote(number)
            raise
        except self._ray.exceptions.RayError as error:
            first = str(error).strip().partition("\n")[0]
            text = f"Its worker in the cluster died: {type(error).__name__}: {first}"
            raise WorkError(text, str(error)) from error
        finally:
            self._streams.discard(stream)

    def close(self, *, abandon: bool) -> None:
        """End what is under way."""
        for stream in list(self._streams):
            self._ray.cancel(stream, force=True)
        self._ray.kill(self._board)
        self._disconnect()

    def _room(self) -> int:
        """Pieces of work that the cluster can do at a time; at least one, or this raises."""
        needs = {"CPU": self.cpus, "GPU": self.gpus}
        # Ray counts in units of 1/10000.
        room = sum(
            min((int(has.get(n, 0) / need + 1e-4) for n, need in needs.items() if need), default=1)
            for has in (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        )
        if not room:
            raise ConfigError(
                f"No node of the Ray cluster has {self.cpus:g} cores and {self.gpus:g} GPUs, "
                "which each worker needs."
            )
        return room

    def _disconnect(self) -> None:
        if self._connected:
            self._ray.shutdown()


class _Board:
    """The numbers of the pieces of work that should stop."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def post(self, number: int) -> None:
        self._numbers.add(number)

    def has(self, number: int) -> bool:
        return number in self._numbers


def _serve(board: Any, number: int, work: Work) -> Iterator[Any]:
    """The task: do a piece of work, ask the board at most every half second whether to stop."""
    import ray

    looked, asked = -LOOK, False

    def stop() -> bool:
        nonlocal looked, asked
        if not asked and time.monotonic() - looked >= LOOK:
            looked = time.monotonic()
            asked = bool(ray.get(board.has.remote(number)))
        return asked

    yield from base.with_end(work, stop)


def _connect(ray: Any, address: str) -> None:
    host, _, port = address.rpartition(":")
    if address != "auto" and (not host or not port.isdigit() or "/" in host):
        raise ConfigError(
            f"Invalid address {address!r} of a Ray cluster. Must be auto, or HOST:PORT of its head "
            "node, such as 10.0.0.1:6379."
        )
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address != "auto":  # if nobody answers, Ray would wait for minutes
            socket.create_connection((host, int(port)), timeout=PATIENCE).close()
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"There is no Ray cluster at {address!r}. To start one: ray start --head"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray replaces it
