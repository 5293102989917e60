"""Several pieces of work on this machine, each in a process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from ocar_lab.experiment.executors.base import INTERVAL, Executor, Heard, Over, Work, follow

THREADS = "OMP_NUM_THREADS"


class Processes(Executor):
    """Worker processes, each with one piece of work at a time, and a pipe to each.

    Work goes down the pipe, messages come back. Whatever else is in the pipe while a worker works,
    ``None`` or its end, is the request to stop; the workers see the end of it also when this
    process is killed, and leave.

    Args:
        workers: How many processes.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # Not fork: PyTorch's threads do not survive it.
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, SpawnProcess] = {}
        self._running: dict[Connection, int] = {}

    @property
    def room(self) -> int:
        """Processes that have nothing to do or have not been started."""
        return self.workers - len(self._running)

    def submit(self, job: int, work: Work) -> None:
        """Give a piece of work to a process that has none."""
        pipe = next((p for p in self._processes if p not in self._running), None)
        if pipe is None:
            pipe, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            with _threads_of_its_own(self.workers):
                process.start()
            theirs.close()
            self._processes[pipe] = process
        self._running[pipe] = job
        self._send(pipe, (job, work))

    def ask_to_stop(self, job: int) -> None:
        """The work hears of it when it asks."""
        for pipe, running in self._running.items():
            if running == job:
                self._send(pipe, None)

    def listen(self) -> Sequence[Heard]:
        """A message of each that has one."""
        heard = []
        for ready in wait(list(self._running), timeout=INTERVAL):
            assert isinstance(ready, Connection)
            heard.append(self._receive(ready))
        return heard

    def close(self, *, abandon: bool) -> None:
        """Let the processes leave, or kill them: what a run has stored survives that."""
        for pipe, process in self._processes.items():
            if abandon:
                process.kill()
            pipe.close()
            process.join()
        self._processes.clear()
        self._running.clear()

    def _send(self, pipe: Connection, what: tuple[int, Work] | None) -> None:
        with suppress(OSError):  # a worker that has died is noticed when it is listened to
            pipe.send(what)

    def _receive(self, pipe: Connection) -> Heard:
        try:
            heard: Heard = pipe.recv()
        except (EOFError, OSError):
            process = self._processes.pop(pipe)
            process.join()
            pipe.close()
            heard = Over(
                job=self._running[pipe],
                error=f"Its process died with exit code {process.exitcode} (a negative one is the "
                "signal that killed it; -9 often means too little memory).",
            )
        if isinstance(heard, Over):
            del self._running[pipe]
        return heard


@contextmanager
def _threads_of_its_own(workers: int) -> Iterator[None]:
    """Processes begun inside it share the cores, whatever library they compute with.

    PyTorch's own limit does not reach all that it calls, and threads that are too many wait for
    each other in a loop. What a user has set is left alone.
    """
    if THREADS in os.environ:
        yield
        return
    os.environ[THREADS] = str(max(1, (os.cpu_count() or 1) // workers))
    try:
        yield
    finally:
        del os.environ[THREADS]


def _serve(pipe: Connection) -> None:
    """What a worker process does: one piece of work after another, until the pipe ends."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    # Ctrl-C reaches every process of the terminal; the one that started us decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, ask)
    with suppress(EOFError, OSError):
        while not asked:
            given: tuple[int, Work] | None = pipe.recv()
            if given is not None:  # else a request to stop work that was over by then
                for heard in follow(*given, lambda: asked or pipe.poll()):
                    pipe.send(heard)
