"""Several runs, one after another or at the same time.

On a CPU runs at the same time are worker processes; on a GPU they are threads of this process, each
with a CUDA stream; on a Ray cluster they are tasks. :func:`run_many` yields the same messages for
all. A run that fails does not affect the others. Workers save and leave on a request to stop, and
processes also when the main process is gone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ocar.accel import Ranks
from ocar.errors import OcarError
from ocar.events import Finished
from ocar_lab.experiment.config import RunConfig
from ocar_lab.experiment.events import AlreadyFinished, Recorded, RunEvent, Started, Stopped
from ocar_lab.experiment.executors import INTERVAL, Executor, Stop, WorkError, Workers, do_all
from ocar_lab.experiment.executors.base import never
from ocar_lab.experiment.loop import run_events
from ocar_lab.experiment.trackers import TrackerName, make_tracker, prepare_tracker
from ocar_lab.runs import is_finished


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to do."""

    config: RunConfig
    out: Path  #: Folder of all runs.
    tracker: TrackerName | None = None  #: Also write to it.
    ranks: Ranks | None = None  #: The processes that do it together; this one is the first.


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is, and how well it does."""

    job: int  #: Index of the job.
    done: int  #: Batches done.
    batches: int  #: Batches in all; 0 if unknown.
    resumed: int  #: Batches that were done when this process began.
    accuracy: float | None = None  #: Now, on all tasks so far; None in regression.
    aaa: float | None = None  #: Mean of that accuracy over time.
    evaluating: float = 0.0  #: Share of the time since it began that was not training.
    reported: Mapping[str, float] = field(default_factory=dict)  #: ``loss``, ``classes``, ...


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run has ended for now."""

    job: int  #: Index of the job.
    state: Literal["finished", "already finished", "stopped", "failed"]
    metrics: Mapping[str, float | None] = field(default_factory=dict)  #: If it finished now.
    error: str = ""  #: What went wrong, in a line or two.
    details: str = ""  #: The traceback, if it failed.

    @property
    def finished(self) -> bool:
        """Whether the run is finished, now or before."""
        return self.state in ("finished", "already finished")


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
        workers: Runs at a time, or more about who does them. With 1 they are done in this
            process, one after another.
        stop: Asked often whether to save and leave.

    Yields:
        For each job some ``Progress`` and one ``Ended``; none for a job that never began.
    """
    finished = [number for number, job in enumerate(jobs) if _is_finished(job)]
    for number in finished:
        yield Ended(job=number, state="already finished")
    left = {number: job for number, job in enumerate(jobs) if number not in finished}
    if not left:
        return
    for tracker, out, benchmark in {(j.tracker, j.out, j.config.benchmark) for j in left.values()}:
        if tracker is not None:
            prepare_tracker(tracker, out, benchmark)
    chosen = Workers(count=workers) if isinstance(workers, int) else workers
    if chosen.ray is None and len(left) == 1:
        chosen = Workers()
    devices = (job.config.resolve_device().type for job in left.values())
    on_gpu = chosen.ray is None and all(device == "cuda" for device in devices)
    executor = chosen.executor(on_gpu=on_gpu, is_ahead=is_evaluated)
    others = None if chosen.count is None else min(chosen.count, len(left)) - 1
    yield from follow_jobs(left, executor, stop=stop or never, others=others)


def follow_jobs(
    jobs: Mapping[int, Job], executor: Executor, *, stop: Stop, others: int | None = None
) -> Iterator[Message]:
    """As :func:`run_many`: have an executor do some runs, which messages name by number.

    ``others`` is the number of other runs at the same time, for the record.
    """
    works = {number: _Follow(number=number, job=job, others=others) for number, job in jobs.items()}
    for number, message in do_all(executor, works, stop=stop):
        if isinstance(message, WorkError):
            error, details = message.error, message.details
            yield Ended(job=number, state="failed", error=error, details=details)
        else:
            yield message


def is_evaluated(message: Any) -> bool:
    """Whether a message shows that a run has trained and been evaluated."""
    return isinstance(message, Progress) and message.done > message.resumed


def _is_finished(job: Job) -> bool:
    """Whether a run is known to be finished; a folder that cannot be read fails when it is run."""
    try:
        return is_finished(job.out / job.config.folder())
    except OcarError:
        return False


@dataclass(frozen=True, kw_only=True)
class _Follow:
    """The work of one run."""

    number: int
    job: Job
    others: int | None

    def __call__(self, stop: Stop) -> Iterator[Message]:
        job = self.job
        tracker = None if job.tracker is None else make_tracker(job.tracker, job.out)
        listeners = [] if tracker is None else [tracker]
        events = run_events(job.config, out=job.out, stop=stop, others=self.others, ranks=job.ranks)
        with closing(events):  # the folder is left before the next run begins
            try:
                yield from as_messages(self.number, events, listeners)
            finally:
                if tracker is not None:
                    tracker.close()


def as_messages(
    job: int, events: Iterable[RunEvent], listeners: Sequence[Callable[[RunEvent], object]] = ()
) -> Iterator[Message]:
    """The events of one run as messages; progress at most every tenth of a second."""
    progress, sent = Progress(job=job, done=0, batches=0, resumed=0), 0.0
    began: tuple[float, float] | None = None  # time and training seconds at the first evaluation
    for event in events:
        for listener in listeners:
            listener(event)
        if isinstance(event, AlreadyFinished):
            yield Ended(job=job, state="already finished")
        elif isinstance(event, Started):
            done, batches, aaa = event.position, event.batches, _defined(event.aaa)
            progress = Progress(job=job, done=done, batches=batches, resumed=done, aaa=aaa)
            yield progress
        elif isinstance(event, Recorded) and time.monotonic() - sent >= INTERVAL:
            evaluated = event.evaluated
            began = began or (time.monotonic(), evaluated.seconds)
            passed = time.monotonic() - began[0]
            trained = (evaluated.seconds - began[1]) / passed if passed > 0 else 1.0
            losses = {"l_p": evaluated.l_p, "l_s": evaluated.l_s}
            reported = {name: value for name, value in losses.items() if value is not None}
            yield replace(
                progress,
                done=evaluated.index + 1,
                accuracy=_defined(evaluated.accuracy),
                aaa=_defined(event.aaa),
                evaluating=max(0.0, 1 - trained),
                reported=reported | dict(event.reported),
            )
            sent = time.monotonic()
        elif isinstance(event, Finished):
            yield Ended(job=job, state="finished", metrics=asdict(event.summary))
        elif isinstance(event, Stopped):
            yield Ended(job=job, state="stopped")


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
