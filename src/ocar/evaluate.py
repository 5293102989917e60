"""The loop of online continual learning: learn a batch, then say how good the learner is now.

:func:`evaluate` is a generator of events and does nothing else: no file is written and nothing
is printed. Progress bars, logs and checkpoints listen to the events. When one arrives, learner
and stream are at rest; the one to save them on is ``Evaluated``, with which a batch is done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ocar import metrics
from ocar.errors import ConfigError, InputError
from ocar.streams.split import StreamBatch


class StepReport(Protocol):
    """What a learner says about a batch that it has learned."""

    @property
    def loss(self) -> torch.Tensor:
        """The loss, a scalar."""


class OnlineLearner(Protocol):
    """What the loop needs of a learner."""

    @property
    def classes(self) -> tuple[int, ...]:
        """The label that each column of :meth:`predict` stands for: the classes seen so far."""

    def learn(self, x: torch.Tensor, y: torch.Tensor, /) -> StepReport:
        """Learn from raw images ``(n, c, h, w)`` and labels ``(n,)``."""

    def remember(self, x: torch.Tensor, y: torch.Tensor, /) -> object:
        """Keep samples in memory without learning from them now."""

    def predict(self, x: torch.Tensor, /) -> torch.Tensor:
        """Logits ``(n, len(classes))`` of raw images ``(n, c, h, w)``."""


class TaskStream(Protocol):
    """What the loop needs of a stream."""

    @property
    def tasks(self) -> int:
        """Number of tasks."""

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches that are left."""

    def validation(self, task: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Validation images and labels of one task."""

    def test(self, task: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Test images and labels of one task."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """A complete batch has been learned."""

    index: int
    """Its place in the stream."""

    task: int
    """Its task."""

    loss: torch.Tensor
    """What the learner reported, a scalar still on its device; ``float(loss)`` waits for it."""

    report: StepReport
    """All that the learner reported."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How often a learner was right on each of some tasks."""

    correct: tuple[int, ...]
    """Correct predictions for each task."""

    sizes: tuple[int, ...]
    """Samples of each task."""

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Accuracy on each task."""
        return tuple(c / n for c, n in zip(self.correct, self.sizes, strict=True))

    @property
    def accuracy(self) -> float:
        """Accuracy on the samples of all these tasks together."""
        return sum(self.correct) / sum(self.sizes)


@dataclass(frozen=True, kw_only=True)
class Evaluated(Counts):
    """The learner has been tried on the validation data of each task up to the current one."""

    index: int
    """Index of the batch before it."""

    task: int
    """Task of that batch."""

    seconds: float
    """Seconds of training since the stream began, evaluation left out."""


@dataclass(frozen=True, kw_only=True)
class TaskEnded:
    """The last batch of a task has been learned and evaluated."""

    index: int
    """Index of that batch."""

    task: int
    """The task."""

    seconds: float
    """Seconds of training since the stream began, evaluation left out."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The metrics of a whole run. Acc is on test data, the others on validation data."""

    acc: float
    """Acc: accuracy on all test data at the end."""

    aaa: float
    """AAA: mean over time of the accuracy on all tasks so far."""

    wc_acc: float
    """WC-Acc: worst-case accuracy."""

    forgetting: float
    """Accuracy lost on the first task since it ended."""

    plasticity: float
    """Accuracy on the last task at the end."""

    seconds: float
    """Seconds of training, evaluation left out."""


@dataclass(frozen=True, kw_only=True)
class Finished(Counts):
    """The stream is over and the learner has been tried on the test data of every task."""

    summary: Summary
    """The metrics."""


Event = Learned | Evaluated | TaskEnded | Finished


def evaluate(
    learner: OnlineLearner,
    stream: TaskStream,
    *,
    every: int = 1,
    history: Sequence[Evaluated] = (),
    test_batch: int = 1000,
) -> Iterator[Event]:
    """Take a learner through what is left of a stream.

    A complete batch is learned, a short one is remembered. After every ``every``-th batch of the
    stream, and after each task's last, comes an evaluation on the validation data of each task so
    far; samples of classes not yet seen count as wrong. At the end comes the test data.

    Args:
        learner: Told neither task nor boundary.
        stream: Batches, validation and test data.
        every: How often to evaluate; 1 is the protocol's.
        history: The evaluations before, where the stream goes on from the middle.
        test_batch: Most test samples to predict at once.

    Yields:
        ``Learned`` for each complete batch, ``Evaluated``, ``TaskEnded``, and ``Finished`` once.
    """
    if every < 1 or test_batch < 1:
        raise ConfigError(f"Invalid {every=}, {test_batch=}. Must both be at least 1.")
    return _events(learner, stream, every, list(history), test_batch)


def summarize(history: Sequence[Evaluated], *, test: Counts, seconds: float) -> Summary:
    """The metrics of a run.

    Args:
        history: Every evaluation of the run, in order.
        test: Results on the test data at the end.
        seconds: Seconds of training.
    """
    if not history:
        raise InputError("No evaluation to summarize: the stream has no batch left, no history.")
    array = metrics.history_array([event.accuracies for event in history])
    return Summary(
        acc=test.accuracy,
        aaa=metrics.average_anytime_accuracy(array, sizes=history[-1].sizes),
        wc_acc=metrics.worst_case_accuracy(array),
        forgetting=metrics.first_task_forgetting(array),
        plasticity=metrics.last_task_accuracy(array),
        seconds=seconds,
    )


def _events(
    learner: OnlineLearner,
    stream: TaskStream,
    every: int,
    history: list[Evaluated],
    test_batch: int,
) -> Iterator[Event]:
    seconds = history[-1].seconds if history else 0.0
    device: torch.device | None = None
    held_out: _HeldOut | None = None
    for batch in stream:
        start = time.perf_counter()
        if batch.complete:
            report = learner.learn(batch.x, batch.y)
            loss = report.loss.detach().clone()  # a captured step reuses its buffer
            device = loss.device
            seconds += time.perf_counter() - start
            yield Learned(index=batch.index, task=batch.task, loss=loss, report=report)
        else:
            learner.remember(batch.x, batch.y)
            seconds += time.perf_counter() - start
        if (batch.index + 1) % every == 0 or batch.last:
            seconds += _wait(device)
            if held_out is None or held_out.task != batch.task:
                held_out = _HeldOut(stream, batch.task)
            evaluated = Evaluated(
                index=batch.index,
                task=batch.task,
                correct=held_out.correct(learner),
                sizes=held_out.sizes,
                seconds=seconds,
            )
            history.append(evaluated)
            yield evaluated
        if batch.last:
            yield TaskEnded(index=batch.index, task=batch.task, seconds=seconds)
    test = _test(learner, stream, test_batch)
    summary = summarize(history, test=test, seconds=seconds)
    yield Finished(correct=test.correct, sizes=test.sizes, summary=summary)


class _HeldOut:
    """The validation data of the tasks up to one, in one piece, so that one predict does."""

    def __init__(self, stream: TaskStream, task: int) -> None:
        parts = [stream.validation(i) for i in range(task + 1)]
        self.task = task
        self.sizes = tuple(len(y) for _, y in parts)
        if 0 in self.sizes:
            raise InputError(
                f"Task {self.sizes.index(0)} has no validation data. "
                "Make the stream with validation greater than 0."
            )
        self.x = torch.cat([x for x, _ in parts])
        self.y = torch.cat([y for _, y in parts])
        numbers = torch.arange(task + 1, device=self.y.device)
        self.task_of = numbers.repeat_interleave(torch.tensor(self.sizes, device=self.y.device))

    def correct(self, learner: OnlineLearner) -> tuple[int, ...]:
        """Correct predictions for each task."""
        hits = _hits(learner, self.x, self.y)
        counts = torch.zeros(self.task + 1, dtype=torch.int64, device=hits.device)
        counts.index_add_(0, self.task_of.to(hits.device), hits)
        return tuple(counts.tolist())


@torch.no_grad()
def _hits(learner: OnlineLearner, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """1 where the learner is right, else 0: ``(n,)`` int64 on the learner's device."""
    logits = learner.predict(x)
    labels = torch.tensor(learner.classes, dtype=torch.int64, device=logits.device)
    if logits.shape != (len(x), len(labels)):
        raise InputError(
            f"The learner predicts {tuple(logits.shape)} for {len(x)} samples and knows "
            f"{len(labels)} classes. Must be one row a sample, one column a class."
        )
    if len(labels) == 0:
        return torch.zeros(len(x), dtype=torch.int64, device=logits.device)
    return (labels[logits.argmax(dim=1)] == y.to(logits.device)).long()


def _test(learner: OnlineLearner, stream: TaskStream, test_batch: int) -> Counts:
    """Results on the test data of each task."""
    correct, sizes = [], []
    for task in range(stream.tasks):
        x, y = stream.test(task)
        pieces = zip(x.split(test_batch), y.split(test_batch), strict=True)
        correct.append(sum(int(_hits(learner, *piece).sum()) for piece in pieces))
        sizes.append(len(y))
    return Counts(correct=tuple(correct), sizes=tuple(sizes))


def _wait(device: torch.device | None) -> float:
    """Seconds until work given to an accelerator is done, so that it counts as training."""
    if device is None or device.type != "cuda":
        return 0.0
    start = time.perf_counter()
    torch.cuda.synchronize(device)
    return time.perf_counter() - start
