"""Several runs, one after another or side by side.

On a CPU runs side by side are in worker processes; on a GPU they are in threads of this process,
each with a stream of its own, since processes would only take turns; and on a Ray cluster they are
wherever there is room. :func:`run_many` yields messages, the same for all: what a bar or a log
needs to know of each run. A run that fails leaves the others alone. Workers save and leave when
they are asked to stop, and processes also when the one that started them is gone.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ocar.errors import OcarError
from ocar.events import Finished
from ocar_lab.experiment.config import RunConfig
from ocar_lab.experiment.events import AlreadyFinished, Recorded, RunEvent, Started, Stopped
from ocar_lab.experiment.executors import Executor, Over, Stop, Workers, do_all, make_executor
from ocar_lab.experiment.executors.base import never, say
from ocar_lab.experiment.loop import run_events
from ocar_lab.experiment.tensorboard import TensorBoard
from ocar_lab.runs import read_run

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
    jobs: Sequence[Job],
    *,
    workers: int | Workers = 1,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Message]:
    """Do several runs.

    Args:
        jobs: The runs.
        workers: Runs at a time; with 1 they are done here, one after another. Or more about who
            does them.
        stop: Asked often whether to save and leave.

    Yields:
        For each job some ``Progress`` and one ``Ended``; none for a job that was never begun.
    """
    stop = stop or never
    finished = [number for number, job in enumerate(jobs) if _is_finished(job)]
    for number in finished:
        yield Ended(job=number, state="already finished")
    left = {number: job for number, job in enumerate(jobs) if number not in finished}
    if left:
        wanted = Workers(count=workers) if isinstance(workers, int) else workers
        beside = None if wanted.count is None else min(wanted.count, len(left)) - 1
        yield from follow_jobs(left, _executor(left, wanted, stop), stop=stop, beside=beside)


def follow_jobs(
    jobs: Mapping[int, Job], executor: Executor, *, stop: Stop, beside: int | None = None
) -> Iterator[Message]:
    """Have runs done by an executor.

    Args:
        jobs: The runs, by the numbers that messages name them by.
        executor: Who does them.
        stop: Asked often whether to save and leave.
        beside: How many other runs it does at the same time as one, for the record.

    Yields:
        The same as :func:`run_many`.
    """
    works = {number: _Follow(number=number, job=job, beside=beside) for number, job in jobs.items()}
    for heard in do_all(executor, works, stop=stop):
        if not isinstance(heard, Over):
            yield heard.message
        elif heard.error:
            yield Ended(job=heard.job, state="failed", error=heard.error, details=heard.details)


def is_evaluated(message: Any) -> bool:
    """Whether a message shows that a run has learned and been evaluated."""
    return isinstance(message, Progress) and message.done > message.resumed


def _executor(jobs: Mapping[int, Job], workers: Workers, stop: Stop) -> Executor:
    if workers.ray is None and len(jobs) == 1:
        workers = Workers()
    on_gpu = workers.ray is None and all(
        job.config.resolve_device().type == "cuda" for job in jobs.values()
    )
    return make_executor(workers, on_gpu=on_gpu, is_ahead=is_evaluated, stop=stop)


def _is_finished(job: Job) -> bool:
    """Whether a run is known to be finished; if it cannot be read, doing it will say why."""
    try:
        return read_run(job.out / job.config.folder()).summary is not None
    except OcarError:
        return False


@dataclass(frozen=True, kw_only=True)
class _Follow:
    """The work of one run, which says how it goes."""

    number: int
    job: Job
    beside: int | None

    def __call__(self, stop: Stop) -> Iterator[Message]:
        try:
            listener = TensorBoard() if self.job.tensorboard else None
            watch = _Watch(self.number)
            for event in run_events(
                self.job.config, out=self.job.out, stop=stop, beside=self.beside
            ):
                if listener is not None:
                    listener(event)
                yield from watch.messages(event)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other runs go on)
            details = traceback.format_exc()
            yield Ended(job=self.number, state="failed", error=say(error), details=details)


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
            self._count = event.evaluated
            self._total = event.aaa * self._count if self._count else 0.0
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
