"""Work on this machine, each piece in a process."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from ocar_lab.experiment.executors import base
from ocar_lab.experiment.executors.base import INTERVAL, Over, Stop, Work, WorkError

THREADS = "OMP_NUM_THREADS"


class Processes(base.Executor):
    """Worker processes, each with one piece of work at a time, and a pipe to each.

    Work goes down the pipe and messages come back. ``None``, or the end of the pipe, is the request
    to stop. Workers see the end also when this process is killed, and leave. Each process starts
    when it is first needed.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._processes: dict[Connection, multiprocessing.process.BaseProcess] = {}
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._starting = threading.Lock()  # since it changes the environment

    def run(self, work: Work, stop: Stop) -> Generator[Any, None, None]:
        """Do a piece of work in an idle process."""
        pipe = self._take()
        try:
            pipe.send(work)
            yield from self._messages(pipe, stop)
        except (EOFError, OSError) as error:
            process = self._processes.pop(pipe)
            process.join()
            pipe.close()
            raise WorkError(
                f"Its process died with exit code {process.exitcode} (a negative one is the signal "
                "that killed it; -9 often means too little memory)."
            ) from error
        finally:
            if pipe in self._processes:
                self._idle.put(pipe)

    def close(self, *, abandon: bool) -> None:
        """Let the processes leave, or kill them: a run survives that with its last checkpoint."""
        for pipe, process in list(self._processes.items()):
            if abandon:
                process.kill()
            else:
                pipe.close()
            process.join()

    def _take(self) -> Connection:
        """The pipe of an idle process, or of a new one."""
        with suppress(queue.Empty):
            return self._idle.get(block=False)
        # Not fork: PyTorch's threads do not survive it.
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with self._starting, _shared_cores(self.workers):
            process.start()
        theirs.close()
        self._processes[pipe] = process
        return pipe

    def _messages(self, pipe: Connection, stop: Stop) -> Generator[Any, None, None]:
        """The messages of a worker, to which a request to stop is passed on once."""
        asked = False
        while True:
            if not asked and stop():
                asked = True
                pipe.send(None)
            if pipe.poll(INTERVAL):
                message = pipe.recv()
                if isinstance(message, Over):
                    return message.check()
                try:
                    yield message
                except GeneratorExit:
                    try:
                        pipe.send(None)
                        while not isinstance(pipe.recv(), Over):
                            pass
                    except (EOFError, OSError):  # it died, and is not to be used again
                        self._processes.pop(pipe).join()
                    raise


@contextmanager
def _shared_cores(workers: int) -> Iterator[None]:
    """Processes that start inside divide the cores, whatever library they compute with.

    PyTorch's own limit does not hold for all libraries, and too many threads wait for each other in
    busy loops. A limit that the user has set stays.
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
    """The main function of a worker process: work until the pipe ends."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    # Ctrl-C reaches every process of the terminal; the main process decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, ask)
    with suppress(EOFError, OSError):
        while not asked:
            work: Work | None = pipe.recv()
            if work is not None:  # else a request to stop that came too late
                for message in base.with_end(work, lambda: asked or pipe.poll()):
                    pipe.send(message)
