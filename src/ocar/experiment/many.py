"""Several runs, one after another or side by side.

On a CPU runs side by side are in worker processes; on a GPU they are in threads of this process,
each with a stream of its own, since processes would only take turns. :func:`run_many` yields
messages, the same for all: what a bar or a log needs to know of each run. A run that fails leaves
the others alone. Workers save and leave when they are asked to stop, and processes also when the
one that started them is gone.
"""

from __future__ import annotations

import math
import multiprocessing
import queue
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Literal

import torch

from ocar.errors import OcarError
from ocar.events import Finished
from ocar.experiment.config import RunConfig
from ocar.experiment.events import AlreadyFinished, Recorded, RunEvent, Started, Stopped
from ocar.experiment.loop import run_events
from ocar.experiment.tensorboard import TensorBoard
from ocar.runs import read_run

INTERVAL = 0.1
"""Least seconds between two messages about the progress of one run."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to do."""

    config: RunConfig
    """What to run."""

    out: Path
    """Folder for all runs."""

    tensorboard: bool = False
    """Whether to write for TensorBoard too."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is, and how well it does."""

    job: int
    """Which job, by its place in the list."""

    done: int
    """Batches done."""

    batches: int
    """Batches in all; 0 if not known."""

    resumed: int
    """Batches that were done when this process began."""

    accuracy: float | None = None
    """Accuracy now, on all tasks so far; None in regression."""

    aaa: float | None = None
    """Mean of that accuracy over time."""

    reported: Mapping[str, float] = field(default_factory=dict)
    """What the learner said last: ``loss``, ``classes``, ``tau``, ..."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run is over for now."""

    job: int
    """Which job, by its place in the list."""

    state: Literal["finished", "already finished", "stopped", "failed"]
    """How it ended."""

    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """The metrics, if it finished now."""

    error: str = ""
    """What went wrong, in a line or two, if it failed."""

    details: str = ""
    """The traceback, if it failed."""


Message = Progress | Ended


def run_many(
    jobs: Sequence[Job], *, workers: int = 1, stop: Callable[[], bool] | None = None
) -> Iterator[Message]:
    """Do several runs.

    Args:
        jobs: The runs.
        workers: Runs at a time; with 1 they are done here, one after another.
        stop: Asked often whether to save and leave.

    Yields:
        For each job some ``Progress`` and one ``Ended``; none for a job that was never begun.
    """
    stop = stop or (lambda: False)
    finished = [number for number, job in enumerate(jobs) if _is_finished(job)]
    for number in finished:
        yield Ended(job=number, state="already finished")
    left = {number: job for number, job in enumerate(jobs) if number not in finished}
    if workers > 1 and len(left) > 1:
        on_gpu = all(job.config.resolve_device().type == "cuda" for job in left.values())
        if on_gpu:
            yield from _follow_in_threads(left, workers=workers, stop=stop)
        else:
            yield from _Pool(left, workers=workers, stop=stop).messages()
        return
    for number, job in left.items():
        if stop():
            return
        yield from _follow(number, job, stop)


def _is_finished(job: Job) -> bool:
    """Whether a run is known to be finished; if it cannot be read, doing it will say why."""
    try:
        return read_run(job.out / job.config.folder()).summary is not None
    except OcarError:
        return False


def _follow(number: int, job: Job, stop: Callable[[], bool]) -> Iterator[Message]:
    """Do one run and say how it goes."""
    try:
        listener = TensorBoard() if job.tensorboard else None
        watch = _Watch(number)
        for event in run_events(job.config, out=job.out, stop=stop):
            if listener is not None:
                listener(event)
            yield from watch.messages(event)
    except Exception as error:  # noqa: BLE001 (whatever it is, the other runs go on)
        yield Ended(job=number, state="failed", error=say(error), details=traceback.format_exc())


def _follow_in_threads(
    jobs: Mapping[int, Job], *, workers: int, stop: Callable[[], bool]
) -> Iterator[Message]:
    """Do runs on a GPU, each on a stream of its own, so that they share it.

    The first goes ahead until its first evaluations are done. By then PyTorch has loaded what they
    all need, which does not go well while another thread records a graph.
    """
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    abandoned, loaded = threading.Event(), threading.Event()

    def asked() -> bool:
        return abandoned.is_set() or stop()

    def follow(number: int, job: Job, *, ahead: bool) -> None:
        if not ahead:
            loaded.wait()
        try:
            if not asked():
                with torch.cuda.stream(torch.cuda.Stream()):
                    for count, message in enumerate(_follow(number, job, asked)):
                        messages.put(message)
                        if count == 1:  # after the one that says where it begins
                            loaded.set()
        finally:
            loaded.set()

    first = next(iter(jobs))
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(follow, n, job, ahead=n == first) for n, job in jobs.items()]
        try:
            while not (all(future.done() for future in futures) and messages.empty()):
                with suppress(queue.Empty):
                    yield messages.get(timeout=INTERVAL)
        finally:
            abandoned.set()
    for future in futures:
        future.result()  # raises what is no failure of a run


def say(error: BaseException) -> str:
    """An error in a line or two; the kind of it only where the message alone would not do."""
    text = str(error).strip()
    return text if isinstance(error, OcarError) and text else f"{type(error).__name__}: {text}"


class _Watch:
    """Turns the events of one run into messages, not too many of them."""

    def __init__(self, job: int) -> None:
        self.job = job
        self._start: Started | None = None
        self._total, self._count = 0.0, 0
        self._sent = 0.0

    def messages(self, event: RunEvent) -> Iterator[Message]:
        if isinstance(event, AlreadyFinished):
            yield Ended(job=self.job, state="already finished")
        elif isinstance(event, Started):
            self._start = event
            self._total = sum(past.accuracy for past in event.history)
            self._count = len(event.history)
            yield self._progress(None)
        elif isinstance(event, Recorded):
            self._total += event.evaluated.accuracy
            self._count += 1
            if time.monotonic() - self._sent >= INTERVAL:
                yield self._progress(event)
                self._sent = time.monotonic()
        elif isinstance(event, Finished):
            yield Ended(job=self.job, state="finished", metrics=asdict(event.summary))
        elif isinstance(event, Stopped):
            yield Ended(job=self.job, state="stopped")

    def _progress(self, event: Recorded | None) -> Progress:
        assert self._start is not None
        start = self._start
        aaa = _defined(self._total / self._count if self._count else None)
        if event is None:
            evaluated, reported, done = None, {}, start.position
        else:
            evaluated, done = event.evaluated, event.evaluated.index + 1
            losses = {"l_p": evaluated.l_p, "l_s": evaluated.l_s}
            reported = {name: value for name, value in losses.items() if value is not None}
            reported |= event.reported
        return Progress(
            job=self.job,
            done=done,
            batches=start.batches,
            resumed=start.position,
            accuracy=None if evaluated is None else _defined(evaluated.accuracy),
            aaa=aaa,
            reported=reported,
        )


def _defined(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


class _Pool:
    """Worker processes, each with one run at a time, and a pipe to each.

    A job goes down the pipe, messages come back; ``None`` is the request to save and leave, and
    so is the end of the pipe, which the workers also see when this process is killed.
    """

    def __init__(self, jobs: Mapping[int, Job], *, workers: int, stop: Callable[[], bool]) -> None:
        self.jobs = jobs
        self.workers = workers
        self.stop = stop
        # Not fork: PyTorch's threads do not survive it.
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, SpawnProcess] = {}
        self._running: dict[Connection, int] = {}

    def messages(self) -> Iterator[Message]:
        waiting = deque(self.jobs)
        stopping = False
        try:
            while waiting or self._running:
                if not stopping and self.stop():
                    stopping = True
                    waiting.clear()
                    for pipe in self._running:
                        self._send(pipe, None)
                while waiting and len(self._running) < self.workers:
                    self._begin(waiting.popleft())
                for ready in wait(list(self._running), timeout=INTERVAL):
                    assert isinstance(ready, Connection)
                    yield self._receive(ready)
        except BaseException:
            for process in self._processes.values():
                process.kill()  # a run survives that
            raise
        finally:
            for pipe, process in self._processes.items():
                pipe.close()
                process.join()

    def _begin(self, number: int) -> None:
        pipe = next((p for p in self._processes if p not in self._running), None)
        if pipe is None:
            pipe, theirs = self._context.Pipe()
            process = self._context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._processes[pipe] = process
        self._running[pipe] = number
        self._send(pipe, (number, self.jobs[number]))

    def _send(self, pipe: Connection, what: tuple[int, Job] | None) -> None:
        with suppress(OSError):  # a worker that has died is noticed when it is listened to
            pipe.send(what)

    def _receive(self, pipe: Connection) -> Message:
        try:
            message: Message = pipe.recv()
        except (EOFError, OSError):
            process = self._processes.pop(pipe)
            process.join()
            pipe.close()
            message = Ended(
                job=self._running[pipe],
                state="failed",
                error=f"Its process died with exit code {process.exitcode} (a negative one is the "
                "signal that killed it; -9 often means too little memory).",
            )
        if isinstance(message, Ended):
            del self._running[pipe]
        return message


def _work(pipe: Connection) -> None:
    """What a worker process does: one run after another, until told to leave."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    # Ctrl-C reaches every process of the terminal; the one that started us decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, ask)
    with suppress(EOFError, OSError):
        while not asked and (task := pipe.recv()) is not None:
            number, job = task
            for message in _follow(number, job, lambda: asked or pipe.poll()):
                pipe.send(message)
