"""The loop of online continual learning: learn a batch, then say how good the learner is now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol, cast

import torch
from torch import Tensor

from ocar.errors import ConfigError
from ocar.evaluate.history import History
from ocar.evaluate.later import Later
from ocar.evaluate.measure import Answer, Classification, Measure, Predictor, Regression
from ocar.evaluate.probe import check_probe, probe_stream
from ocar.evaluate.stopwatch import Lap, Stopwatch
from ocar.evaluate.summary import summarize
from ocar.events import (
    AtRest,
    Evaluated,
    Event,
    Finished,
    Guarded,
    Learned,
    StepReport,
    TaskEnded,
)
from ocar.streams.base import StreamBatch, TaskStream

BLOCK = 32
"""Evaluations that are told together on a GPU."""


class OnlineLearner(Predictor, Protocol):
    """What the loop needs of a learner.

    A learner may also have an attribute ``wants_boundaries``; where it is true, its method
    ``boundary()`` is called whenever a task has ended and another follows. It may have a
    ``device``, to which held-out data is then moved once, and ``release()``, called when all is
    learned, to give back memory that only learning needs. And it may have ``guarded``, counts of
    what its guard has done, see :class:`ocar.guard.GuardCounts`.
    """

    def learn(self, x: Tensor, y: Tensor, /) -> StepReport:
        """Learn from raw samples ``(n, ...)`` and labels ``(n,)`` or targets ``(n, outputs)``."""

    def remember(self, x: Tensor, y: Tensor, /) -> object:
        """Keep samples in memory without learning from them now."""


class _BoundaryLearner(Protocol):
    def boundary(self) -> object:
        """A task has ended, and another follows."""


def evaluate(
    learner: OnlineLearner,
    stream: TaskStream,
    *,
    every: int | Literal["task"] = 1,
    history: Sequence[Evaluated] | History = (),
    block: int | None = None,
    rest: Callable[[int], bool] | None = None,
    test_batch: int = 1000,
    online: bool = False,
    probe: bool = False,
    seed: int = 0,
) -> Iterator[Event]:
    """Take a learner through what is left of a stream.

    A complete batch is learned, a short one is remembered. After every ``every``-th batch of the
    stream, and after each task's last, comes an evaluation on the validation data of each task so
    far; samples of classes not yet seen count as wrong. At the end comes the test data.

    Where the stream has targets and not labels, each batch is first predicted for L_p, and an
    evaluation is the mean squared error on all that the stream has given so far, for L_s.

    Args:
        learner: Told neither task nor boundary, unless it says that it wants boundaries.
        stream: Batches, validation and test data.
        every: How often to evaluate; 1 is the protocol's, ``"task"`` is after each task only.
            L_s sums over evaluations.
        block: So many evaluations are told together, so that a GPU is not waited for each time;
            by default 32 on a GPU, else 1. A task's last always ends a block.
        rest: Asked after a block of more than one, with the index of its last batch, whether all
            is to come to rest. If not, the block is told while the next is learned, and a GPU
            always has something to do. By default there is a rest after each block.
        history: The evaluations before, where the stream goes on from the middle. A ``History``
            is carried on: it has every evaluation that was told.
        test_batch: Most test samples to predict at once.
        online: Also predict each batch before it is learned; a stream without validation data
            can be evaluated by this alone.
        probe: Also fit a linear classifier on the features at the end, see
        :mod:`ocar.evaluate.probe`;
            not in regression.
        seed: Seed of the probe's augmentation.

    Yields:
        ``Learned`` for each complete batch, ``Evaluated``, ``Guarded`` if the learner's guard has
        backed off, ``AtRest`` when what was learned has all
        been evaluated, ``TaskEnded``, and ``Finished`` once.
    """
    if (every != "task" and every < 1) or test_batch < 1 or (block is not None and block < 1):
        raise ConfigError(f"Invalid {every=}, {block=}, {test_batch=}. Must all be at least 1.")
    if probe:
        check_probe(learner)
    past = history if isinstance(history, History) else History(history)
    loop = _Loop(learner, stream, past, online=online)
    if block is None:
        block = BLOCK if loop.watch.on_cuda else 1
    rests = rest if rest is not None and block > 1 else None
    return loop.events(
        every=every, block=block, rest=rests, test_batch=test_batch, probe=probe, seed=seed
    )


class _Loop:
    """One run through what is left of a stream."""

    def __init__(
        self, learner: OnlineLearner, stream: TaskStream, history: History, *, online: bool
    ) -> None:
        self.learner = learner
        self.stream = stream
        self.history = history
        self.online = online
        self.guarded = _guarded(learner)
        device: torch.device | None = getattr(learner, "device", None)
        self.watch = Stopwatch(device, 0.0 if history.last is None else history.last.seconds)

    def events(
        self,
        *,
        every: int | Literal["task"],
        block: int,
        rest: Callable[[int], bool] | None,
        test_batch: int,
        probe: bool,
        seed: int,
    ) -> Iterator[Event]:
        regression = self.history.last is not None and self.history.last.l_s is not None
        measure: Measure | None = None
        waiting: list[tuple[Lap, Answer]] = []
        most = block if rest is None else 2 * block
        for batch in self.stream:
            if measure is None:
                measure = self._measure(batch.y.is_floating_point())
            measure.arrive(batch)
            with self.watch.running():
                learned = self._take(batch)
            if learned is not None:
                yield learned
            due = every != "task" and (batch.index + 1) % every == 0
            if due or batch.last:
                waiting.append((self.watch.lap(), measure.evaluate(batch)))
            if waiting and (len(waiting) == most or batch.last):
                rests = batch.last or rest is None or rest(batch.index)
                if rests:
                    self._check()
                told = len(waiting) if rests else block
                yield from self._tell(waiting[:told])
                del waiting[:told]
                if rests:
                    yield from self._backed_off(batch.index)
                    yield AtRest(index=batch.index)
            if batch.last and self.history.last is not None:
                seconds = self.history.last.seconds
                yield TaskEnded(index=batch.index, task=batch.task, seconds=seconds)
        measure = measure or self._measure(regression)
        measure.release()
        getattr(self.learner, "release", lambda: None)()
        test = measure.test(test_batch)
        probed = None
        if probe and not isinstance(measure, Regression):
            probed = probe_stream(self.learner, self.stream, seed=seed)
        seconds = self.watch.seconds(self.watch.lap())
        summary = summarize(self.history, test=test, seconds=seconds, probe=probed)
        yield Finished(correct=test.correct, sizes=test.sizes, summary=summary, probe=probed)

    def _check(self) -> None:
        """Wait for a learner that has something to say only then."""
        check = getattr(self.learner, "check", None)
        if check is not None:
            check()

    def _tell(self, waiting: list[tuple[Lap, Answer]]) -> Iterator[Evaluated]:
        for lap, answer in waiting:
            event = answer(self.watch.seconds(lap))
            self.history.add(event)
            yield event

    def _backed_off(self, index: int) -> Iterator[Guarded]:
        """What the learner's guard has done since it was last asked, if anything."""
        before, self.guarded = self.guarded, _guarded(self.learner)
        new = [now - then for now, then in zip(self.guarded[:4], before[:4], strict=True)]
        if any(new):
            not_finite, out_of_scale, shortened, copies = new
            yield Guarded(
                index=index,
                not_finite=not_finite,
                out_of_scale=out_of_scale,
                shortened=shortened,
                copies=copies,
                in_a_row=self.guarded[4],
            )

    def _measure(self, regression: bool) -> Measure:
        before = self.history.last
        if regression:
            return Regression(self.learner, self.stream, before)
        return Classification(self.learner, self.stream, before, online=self.online)

    def _take(self, batch: StreamBatch) -> Learned | None:
        """Learn or remember a batch, and tell a learner that wants to know of a boundary."""
        learned = None
        if batch.complete:
            report = self.learner.learn(batch.x, batch.y)
            loss = Later(report.loss)  # a captured step reuses its buffer
            learned = Learned(index=batch.index, task=batch.task, loss=loss, report=report)
        else:
            self.learner.remember(batch.x, batch.y)
        # Before the evaluation, so that a learner that is saved on it has been told.
        between_tasks = batch.last and batch.task < self.stream.tasks - 1
        if between_tasks and getattr(self.learner, "wants_boundaries", False):
            cast(_BoundaryLearner, self.learner).boundary()
        return learned


def _guarded(learner: object) -> tuple[int, ...]:
    """What a learner's guard has done so far; nothing if it has none."""
    counts = getattr(learner, "guarded", None)
    if counts is None:
        return (0,) * 5
    named = (counts.not_finite, counts.out_of_scale, counts.shortened, counts.copies)
    return (*named, counts.in_a_row)
