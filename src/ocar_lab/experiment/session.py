"""The part of a run that one process does: learn, evaluate, write the folder, yield events.

A session needs a learner, a stream and a folder, and no configuration. So a stream of one's own has
checkpoints and metrics, and can be killed and resumed, as the benchmarks can.
"""

from __future__ import annotations

import json
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal

from torch import Tensor

from ocar.errors import CheckpointError, NumericalError
from ocar.evaluate import History, evaluate
from ocar.evaluate.history import is_kept
from ocar.events import Evaluated, Finished, Guarded, Idle, Learned, TaskEnded
from ocar.learner import Learner
from ocar.methods.registry import describe_method
from ocar.state import with_prefix, without_prefix
from ocar.streams.base import TaskStream
from ocar_lab.experiment.events import Recorded, RunEvent, Saved, Started, Stopped
from ocar_lab.experiment.executors.base import never
from ocar_lab.runs import RunFolder
from ocar_lab.runs.provenance import differences
from ocar_lab.runs.records import evaluation_record, evaluations, result_record

FLUSH_SECONDS = 5.0
"""Most time until the run is idle again; that a GPU learner has diverged is noticed then."""

MOST_IN_A_ROW = 20
"""With this many skipped batches in a row, the cause is not the batches."""

SHARE = 0.01
"""Share of the time that saving may take; with the last checkpoint of a short run, under 2 %."""

LEAST_SECONDS = 1.0
"""Least time between two checkpoints."""


class Cadence:
    """Decides when the next checkpoint is due.

    Args:
        every: Batches between two checkpoints; None to decide by the cost of the last one.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, every: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.every, self.clock = every, clock
        self._batches = 0
        self._saved, self._wait = clock(), LEAST_SECONDS

    def is_due(self, index: int) -> bool:
        """Whether to save after the batch with this index."""
        if self.every is not None:
            return index + 1 - self._batches >= self.every
        return self.clock() - self._saved >= self._wait

    def note(self, index: int, *, cost: float = 0.0) -> None:
        """Note a checkpoint up to a batch that was read, or written in ``cost`` seconds."""
        self._batches = index + 1
        self._saved, self._wait = self.clock(), max(LEAST_SECONDS, cost / SHARE)


class Session:
    """Begins or resumes the run of a folder.

    Args:
        folder: The run folder, entered.
        learner: A new learner; it is restored if there is a checkpoint.
        stream: The stream at its beginning; it is moved to its position in the checkpoint.
        every: Evaluation interval in batches, or ``"task"``.
        online: Also predict each batch before it is learned.
        probe: At the end, also fit a linear classifier on the features.
        seed: Seed of the probe's augmentation.
        checkpoint_every: Save after this many batches; None to decide by the cost of saving.

    Attributes:
        position: Batches done.
        history: The evaluations, thinned out in a long stream.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        learner: Learner,
        stream: TaskStream,
        every: int | Literal["task"] = 1,
        online: bool = False,
        probe: bool = False,
        seed: int = 0,
        checkpoint_every: int | None = None,
    ) -> None:
        self.folder = folder
        self.learner = learner
        self.stream = stream
        self.every: int | Literal["task"] = every
        self.position = 0
        self.history = History()
        self._past: tuple[Evaluated, ...] = ()
        self._saved = 0
        self._stop: Callable[[], bool] = never
        self._flushed = time.monotonic()
        self.cadence = Cadence(checkpoint_every)
        restored = folder.restore()
        if restored is not None:
            self._restore(*restored)
        if learner.ranks is not None:
            learner.ranks.exchange(self._state())  # restore_rank takes it
        self._loop = evaluate(
            learner,
            stream,
            every=every,
            flush=self._wants_flush,
            history=self.history,
            online=online,
            probe=probe,
            seed=seed,
        )

    def events(self, stop: Callable[[], bool]) -> Iterator[RunEvent]:
        """Learn the rest of the stream; ``stop`` is asked whether to save and leave when idle."""
        self._stop = stop
        past, self._past = self._past, ()
        yield Started(
            path=self.folder.path,
            batches=operator.length_hint(self.stream),
            position=self.position,
            history=past,
            evaluated=self.history.count,
            aaa=self.history.anytime.compute(),
        )
        learned: dict[int, Learned] = {}
        for event in self._loop:
            if isinstance(event, Learned):
                self._note(learned, event)
            elif isinstance(event, Evaluated):
                # A batch that was only remembered has no report. An earlier one may not stand in:
                # a resumed run would not have it.
                yield self._record(event, learned.pop(event.index, None))
            elif isinstance(event, Guarded):
                if event.in_a_row >= MOST_IN_A_ROW:
                    raise NumericalError(
                        f"The last {event.in_a_row} batches by batch {event.index} were skipped: "
                        "their loss or weights were not finite, or their inputs were out of scale. "
                        "Try a smaller learning rate, and check the inputs."
                    )
                yield event
            elif isinstance(event, Idle):
                learned.clear()
                self._flushed = time.monotonic()
                stopping = stop()
                if stopping or self.cadence.is_due(event.index):
                    yield self._save("stopped" if stopping else "running")
                if stopping:
                    yield Stopped(index=event.index)
                    return
            elif isinstance(event, TaskEnded):
                yield event
                if event.task == self.stream.tasks - 1 and self._saved < self.position:
                    yield self._save("running")  # since test and probe can take long
            elif isinstance(event, Finished):
                # A run with a result counts as finished, so that its last state must be saved.
                if self._saved < self.position:
                    yield self._save("running")
                evaluated = None if self.history.whole else self.history.count
                self.folder.append(result_record(event, evaluated) | self.folder.named)
                self.folder.set_status(
                    "finished",
                    learned=self.learner.batches,
                    steps=self.learner.steps,
                    guarded=asdict(self.learner.guarded),
                )
                yield event

    def _wants_flush(self, index: int) -> bool:
        """Whether to become idle after a batch."""
        overdue = time.monotonic() - self._flushed >= FLUSH_SECONDS
        return overdue or self._stop() or self.cadence.is_due(index)

    def _note(self, learned: dict[int, Learned], event: Learned) -> None:
        """Store a report until its batch is evaluated; reports of other batches are dropped."""
        before = event.index - 1
        if self.every == "task" or (before + 1) % self.every:
            learned.pop(before, None)
        learned[event.index] = event

    def _record(self, event: Evaluated, learned: Learned | None) -> Recorded:
        reported = {} if learned is None else _reported(learned)
        count = self.history.count
        kept = is_kept(count - 1)
        if kept:
            numbered = {} if self.history.whole else {"evaluations": count}
            self.folder.append(evaluation_record(event, reported | numbered))
        self.position = event.index + 1
        if not math.isfinite(reported.get("loss", 0.0)) and self.learner.guard_settings is None:
            raise NumericalError(
                f"The loss is {reported['loss']} at batch {event.index}: the learner has "
                "diverged. Try a smaller learning rate."
            )
        aaa = self.history.anytime.compute()
        return Recorded(evaluated=event, reported=reported, aaa=aaa, kept=kept)

    def _save(self, state: str) -> Saved:
        start = time.perf_counter()
        tensors, values = self._state()
        if not self.history.whole:
            values["history"] = self.history.state()
        self.folder.save(tensors, values)
        self.folder.set_status(state, batch=self.position)
        seconds = time.perf_counter() - start
        self.cadence.note(self.position - 1, cost=seconds)
        self._saved = self.position
        return Saved(index=self.position - 1, seconds=seconds)

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Learner and stream."""
        tensors, values = self.learner.state()
        place = {"position": self.position, "stream": dict(self.stream.state_dict())}
        return with_prefix("learner", tensors), {"learner": values, **place}

    def _restore(
        self,
        tensors: Mapping[str, Tensor],
        values: Mapping[str, Any],
        records: list[dict[str, Any]],
    ) -> None:
        try:
            self._check_method(values["learner"])
            self.learner.load_state(without_prefix("learner", tensors), values["learner"])
            self.stream.load_state_dict(values["stream"])
            self.position = int(values["position"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.folder.path} has a damaged checkpoint: {error}"
            ) from error
        self._past = evaluations(records)
        if "history" in values:
            self.history = History.restored(values["history"])
        else:
            self.history = History(self._past)
        self._saved = self.position
        self.cadence.note(self.position - 1)

    def _check_method(self, saved: Mapping[str, Any]) -> None:
        """Raise if the checkpoint is of a learner with another method, seed or setting."""
        learner = self.learner
        described = describe_method(
            learner.settings, learner.transform_settings, learner.guard_settings
        )
        own = json.loads(json.dumps(described))
        theirs: dict[str, Any] = {name: saved.get(name) for name in own}
        for name, values in own.items():
            if isinstance(values, dict) and isinstance(theirs[name], dict):
                # A version may have added or removed a setting: compare those of both.
                theirs[name] = values | {n: v for n, v in theirs[name].items() if n in values}
        found = differences(theirs, own)
        if found:
            raise CheckpointError(
                f"{self.folder.path} has the checkpoint of another learner: {'; '.join(found)}. "
                "Move the folder away to start again."
            )


def restore_rank(learner: Learner, stream: TaskStream) -> None:
    """Give another rank than the first, which has a ``Session``, what the session has restored."""
    assert learner.ranks is not None
    nothing: tuple[dict[str, Tensor], dict[str, Any]] = {}, {}
    tensors, values = learner.ranks.exchange(nothing)[0]
    learner.load_state(without_prefix("learner", tensors), values["learner"])
    stream.load_state_dict(values["stream"])


def _reported(learned: Learned) -> dict[str, float]:
    """The learner's report as numbers; this synchronizes with the device."""
    report = learned.report
    own = {"loss": float(learned.loss), "classes": getattr(report, "classes", 0)}
    return own | {name: float(v) for name, v in getattr(report, "values", {}).items()}
