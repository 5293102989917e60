"""The loop of online continual learning: learn a batch, then evaluate the learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from torch import Tensor

from ocar.accel.timing import Lap, Stopwatch
from ocar.accel.transfer import Later
from ocar.errors import ConfigError
from ocar.evaluate.history import History, summarize
from ocar.evaluate.measure import Classification, Predictor, Regression, Result
from ocar.evaluate.probe import check_probe, probe_stream
from ocar.events import Evaluated, Event, Finished, Guarded, Idle, Learned, StepReport, TaskEnded
from ocar.streams.base import StreamBatch, TaskStream

BLOCK = 32
"""Evaluations that are emitted together on a GPU."""

_COUNTS = ("not_finite", "out_of_scale", "shortened", "copies")


class OnlineLearner(Predictor, Protocol):
    """What the loop needs of a learner.

    A learner may also have

    - ``wants_boundaries``: if true, ``boundary()`` is called when a task has ended and another
      follows;
    - ``device``: held-out data is moved there once;
    - ``check()``: called before a flush, to raise what went wrong on the device;
    - ``release()``: called when all is learned, to free memory that only learning needs;
    - ``guarded``: the counts of its guard, see :class:`ocar.guard.GuardCounts`.
    """

    def learn(self, x: Any, y: Tensor, /) -> StepReport:
        """Learn from raw samples ``(n, ...)`` and labels ``(n,)`` or targets ``(n, outputs)``."""

    def remember(self, x: Any, y: Tensor, /) -> object:
        """Store samples in memory without learning from them now."""


def evaluate(
    learner: OnlineLearner,
    stream: TaskStream,
    *,
    every: int | Literal["task"] = 1,
    history: Sequence[Evaluated] | History = (),
    block: int | None = None,
    flush: Callable[[int], bool] | None = None,
    test_batch: int = 1000,
    online: bool = False,
    probe: bool = False,
    seed: int = 0,
) -> Iterator[Event]:
    """Take a learner through the rest of a stream.

    A complete batch is learned, a short one is remembered. After every ``every``-th batch of the
    stream, and after the last of each task, the learner is evaluated on the validation data of each
    task so far; samples of classes not yet seen count as wrong. At the end it is evaluated on the
    test data.

    If the stream has targets instead of labels, each batch is first predicted for L_p, and an
    evaluation is the mean squared error on all data so far, for L_s.

    Args:
        learner: It sees neither task nor boundary, unless it wants boundaries. With several ranks
            every rank calls this with the whole stream; each learns its share and evaluates alone.
        stream: Batches, validation and test data.
        every: Batches between evaluations; the protocol has 1. ``"task"`` is after each task only.
            L_s sums over evaluations.
        history: The evaluations so far, to resume a stream in the middle. A ``History`` is updated
            with every evaluation.
        block: Evaluations that are emitted together, so that a GPU is waited for less often; by
            default 32 on a GPU, else 1. The end of a task always ends a block.
        flush: Called with the index of the last batch when a block of more than one is full. If
            it returns false, the block is emitted only after the next one was learned, so that a
            GPU never runs dry. By default every block is flushed.
        test_batch: Most test samples to predict at once.
        online: Also predict each batch before it is learned. This alone can evaluate a stream
            without validation data.
        probe: At the end, also fit a linear classifier on the features, see
            :mod:`ocar.evaluate.probe`; not in regression.
        seed: Seed of the probe's augmentation.

    Yields:
        ``Learned`` for each complete batch, ``Evaluated``, ``Guarded`` if the learner's guard has
        backed off, ``Idle`` after a flush, ``TaskEnded``, and ``Finished`` once.
    """
    if (every != "task" and every < 1) or test_batch < 1 or (block is not None and block < 1):
        raise ConfigError(f"Invalid {every=}, {block=}, {test_batch=}. Must all be at least 1.")
    if probe:
        check_probe(learner)
    past = history if isinstance(history, History) else History(history)
    last = past.last
    watch = Stopwatch(getattr(learner, "device", None), 0.0 if last is None else last.seconds)
    if block is None:
        block = BLOCK if watch.asynchronous else 1

    def make_measure(regression: bool) -> Classification | Regression:
        if regression:
            return Regression(learner, stream, last)
        return Classification(learner, stream, last, online=online)

    def events() -> Iterator[Event]:  # the arguments were checked at once
        started = _Started(learner, past, watch, block=block, flush=flush)
        seen = 0 if last is None else last.seen
        measure: Classification | Regression | None = None
        for batch in stream:
            measure = measure or make_measure(batch.y.is_floating_point())
            measure.arrive(batch)
            seen += len(batch.y)
            with watch.running():
                learned = take_batch(learner, stream, batch)
            if learned is not None:
                yield learned
            if batch.last or (every != "task" and (batch.index + 1) % every == 0):
                started.add(batch, seen, measure.evaluate(batch))
            yield from started.emit(batch)
            if batch.last and past.last is not None:
                seconds = past.last.seconds
                yield TaskEnded(index=batch.index, task=batch.task, seconds=seconds)
        measure = measure or make_measure(last is not None and last.l_s is not None)
        measure.release()
        getattr(learner, "release", _nothing)()
        test = measure.test(test_batch)
        probed = None
        if probe and isinstance(measure, Classification):
            probed = probe_stream(learner, stream, seed=seed)
        seconds = watch.seconds(watch.lap())
        summary = summarize(past, test=test, seconds=seconds, probe=probed)
        yield Finished(correct=test.correct, sizes=test.sizes, summary=summary, probe=probed)

    return events()


class _Started:
    """Evaluations that were started; on a GPU their events are emitted later, in blocks."""

    def __init__(
        self,
        learner: Any,
        history: History,
        watch: Stopwatch,
        *,
        block: int,
        flush: Callable[[int], bool] | None,
    ) -> None:
        self._learner = learner
        self._history = history
        self._watch = watch
        self._block = block
        self._flush = flush if block > 1 else None
        self._most = block if self._flush is None else 2 * block
        self._waiting: list[Callable[[], Evaluated]] = []
        self._guarded = _guard_counts(learner)

    def add(self, batch: StreamBatch, seen: int, result: Result) -> None:
        """Add an evaluation after a batch, when so many samples had been seen."""
        self._waiting.append(partial(self._finish, batch, self._watch.lap(), seen, result))

    def _finish(self, batch: StreamBatch, lap: Lap, seen: int, result: Result) -> Evaluated:
        """The event of an evaluation; this may wait for the device."""
        event = Evaluated(
            index=batch.index,
            task=batch.task,
            seconds=self._watch.seconds(lap),
            seen=seen,
            **result(),
        )
        self._history.add(event)
        return event

    def emit(self, batch: StreamBatch) -> Iterator[Event]:
        """The events of a full block, or at the end of a task of all evaluations so far."""
        if not self._waiting or not (len(self._waiting) == self._most or batch.last):
            return
        flushed = batch.last or self._flush is None or self._flush(batch.index)
        if flushed:
            getattr(self._learner, "check", _nothing)()
        count = len(self._waiting) if flushed else self._block
        for evaluation in self._waiting[:count]:
            yield evaluation()
        del self._waiting[:count]
        if flushed:
            before, self._guarded = self._guarded, _guard_counts(self._learner)
            new = {name: self._guarded[name] - before[name] for name in _COUNTS}
            if any(new.values()):
                yield Guarded(index=batch.index, **new, in_a_row=self._guarded["in_a_row"])
            yield Idle(index=batch.index)


def take_batch(learner: Any, stream: TaskStream, batch: StreamBatch) -> Learned | None:
    """Learn or remember a batch; call a learner that wants boundaries."""
    learned, x, y = None, batch.x, batch.y
    if (ranks := getattr(learner, "ranks", None)) is not None:  # each has the whole stream
        x, y = ranks.share(x), ranks.share(y)
    if batch.complete:
        report = learner.learn(x, y)
        loss = Later(report.loss)  # the next step overwrites it
        learned = Learned(index=batch.index, task=batch.task, loss=loss, report=report)
    else:
        learner.remember(x, y)
    # Before the evaluation: a checkpoint made on it must include the boundary.
    between_tasks = batch.last and batch.task < stream.tasks - 1
    if between_tasks and getattr(learner, "wants_boundaries", False):
        learner.boundary()
    return learned


def _guard_counts(learner: Any) -> dict[str, int]:
    """What a learner's guard has done so far; zeros without a guard."""
    counts = getattr(learner, "guarded", None)
    return {name: getattr(counts, name, 0) for name in (*_COUNTS, "in_a_row")}


def _nothing() -> None: ...
