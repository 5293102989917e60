"""The loop of online continual learning: learn a batch, then say how good the learner is now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor

from ocar.errors import ConfigError
from ocar.evaluate.measure import Classification, Measure, Predictor, Regression
from ocar.evaluate.summary import summarize
from ocar.events import Evaluated, Event, Finished, Learned, StepReport, TaskEnded
from ocar.probe import check_probe, probe_stream
from ocar.streams.base import StreamBatch, TaskStream


class OnlineLearner(Predictor, Protocol):
    """What the loop needs of a learner.

    A learner may also have an attribute ``wants_boundaries``; where it is true, its method
    ``boundary()`` is called whenever a task has ended and another follows. And it may have a
    ``device``, to which held-out data is then moved once.
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
    every: int = 1,
    history: Sequence[Evaluated] = (),
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
        every: How often to evaluate; 1 is the protocol's. L_s sums over evaluations.
        history: The evaluations before, where the stream goes on from the middle.
        test_batch: Most test samples to predict at once.
        online: Also predict each batch before it is learned; a stream without validation data
            can be evaluated by this alone.
        probe: Also fit a linear classifier on the features at the end, see :mod:`ocar.probe`;
            not in regression.
        seed: Seed of the probe's augmentation.

    Yields:
        ``Learned`` for each complete batch, ``Evaluated``, ``TaskEnded``, and ``Finished`` once.
    """
    if every < 1 or test_batch < 1:
        raise ConfigError(f"Invalid {every=}, {test_batch=}. Must both be at least 1.")
    if probe:
        check_probe(learner)
    loop = _Loop(learner, stream, list(history), online=online)
    return loop.events(every=every, test_batch=test_batch, probe=probe, seed=seed)


class _Loop:
    """One run through what is left of a stream."""

    def __init__(
        self, learner: OnlineLearner, stream: TaskStream, history: list[Evaluated], *, online: bool
    ) -> None:
        self.learner = learner
        self.stream = stream
        self.history = history
        self.online = online
        self.seconds = history[-1].seconds if history else 0.0
        self.device: torch.device | None = None  # of the work that an evaluation waits for

    def events(self, *, every: int, test_batch: int, probe: bool, seed: int) -> Iterator[Event]:
        regression = bool(self.history) and self.history[-1].l_s is not None
        measure: Measure | None = None
        for batch in self.stream:
            if measure is None:
                measure = self._measure(batch.y.is_floating_point())
            if measure.predicts:
                self.seconds += _wait(self.device)
            measure.arrive(batch)
            if measure.predicts:
                _wait(self.device)  # a prediction is no training
            start = time.perf_counter()
            learned = self._take(batch)
            self.seconds += time.perf_counter() - start
            if learned is not None:
                yield learned
            if (batch.index + 1) % every == 0 or batch.last:
                self.seconds += _wait(self.device)
                self.history.append(measure.evaluate(batch, self.seconds))
                yield self.history[-1]
            if batch.last:
                yield TaskEnded(index=batch.index, task=batch.task, seconds=self.seconds)
        measure = measure or self._measure(regression)
        test = measure.test(test_batch)
        probed = None
        if probe and not isinstance(measure, Regression):
            probed = probe_stream(self.learner, self.stream, seed=seed)
        summary = summarize(self.history, test=test, seconds=self.seconds, probe=probed)
        yield Finished(correct=test.correct, sizes=test.sizes, summary=summary, probe=probed)

    def _measure(self, regression: bool) -> Measure:
        before = self.history[-1] if self.history else None
        if regression:
            return Regression(self.learner, self.stream, before)
        return Classification(self.learner, self.stream, before, online=self.online)

    def _take(self, batch: StreamBatch) -> Learned | None:
        """Learn or remember a batch, and tell a learner that wants to know of a boundary."""
        learned = None
        if batch.complete:
            report = self.learner.learn(batch.x, batch.y)
            loss = report.loss.detach().clone()  # a captured step reuses its buffer
            self.device = loss.device
            learned = Learned(index=batch.index, task=batch.task, loss=loss, report=report)
        else:
            self.learner.remember(batch.x, batch.y)
        # Before the evaluation, so that a learner that is saved on it has been told.
        between_tasks = batch.last and batch.task < self.stream.tasks - 1
        if between_tasks and getattr(self.learner, "wants_boundaries", False):
            cast(_BoundaryLearner, self.learner).boundary()
        return learned


def _wait(device: torch.device | None) -> float:
    """Seconds until work given to an accelerator is done, so that it counts as training."""
    if device is None or device.type != "cuda":
        return 0.0
    start = time.perf_counter()
    torch.cuda.synchronize(device)
    return time.perf_counter() - start
