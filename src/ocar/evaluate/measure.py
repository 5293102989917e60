"""Evaluate a learner on the data of a stream, by classification or by regression.

Both kinds see each batch before it is learned, start an evaluation after it, and read the result
later, so that a GPU is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ocar.accel.transfer import Later
from ocar.errors import InputError
from ocar.events import Counts, Evaluated
from ocar.streams.base import Labelled, StreamBatch, TaskStream, concatenate
from ocar.structure import Inputs


class Predictor(Protocol):
    """A learner that predicts."""

    @property
    def classes(self) -> tuple[int, ...]:
        """The label of each column of :meth:`predict`: the classes seen so far."""

    def predict(self, x: Any, /) -> Tensor:
        """Logits ``(n, len(classes))`` of raw samples ``(n, ...)``, or outputs ``(n, outputs)``."""


Result = Callable[[], dict[str, Any]]
"""Gives the measured fields of an ``Evaluated`` event; it may wait for the device."""


class Classification:
    """Counts correct predictions on the validation data of the tasks so far.

    If ``online``, also on each batch before it is learned. ``before`` is the last evaluation before
    this part of the stream.
    """

    def __init__(
        self, learner: Predictor, stream: TaskStream, before: Evaluated | None, *, online: bool
    ) -> None:
        self.learner = learner
        self.stream = stream
        self.online = online
        self._correct: int | Tensor = 0 if before is None else before.online_correct or 0
        self._held_out: _HeldOut | None = None

    def arrive(self, batch: StreamBatch) -> None:
        """Predict a batch that is about to be learned, if ``online``."""
        if self.online:
            self._correct = hits(self.learner, batch.x, batch.y).sum() + self._correct

    def evaluate(self, batch: StreamBatch) -> Result:
        """Start to count correct predictions for each task up to that of the batch."""
        if self._held_out is None:
            self._held_out = _HeldOut(self.learner, self.stream, optional=self.online)
        counts, sizes = self._held_out.correct(batch.task)
        online = self._correct if self.online else None
        return lambda: {
            "correct": tuple(counts.read().tolist()),
            "sizes": sizes,
            "online_correct": None if online is None else int(online),
        }

    def release(self) -> None:
        """Free the validation data."""
        self._held_out = None

    def test(self, most: int) -> Counts:
        """Count correct predictions on the test data, at most ``most`` samples at once."""
        correct, sizes = [], []
        for task in range(self.stream.tasks):
            x, y = self.stream.test(task)
            pieces = zip(x.split(most), y.split(most), strict=True) if len(y) else ()
            correct.append(sum(int(hits(self.learner, *piece).sum()) for piece in pieces))
            sizes.append(len(y))
        return Counts(correct=tuple(correct), sizes=tuple(sizes))


class Regression:
    """Sums L_p, on each batch before it is learned, and L_s, on all data so far."""

    def __init__(self, learner: Predictor, stream: TaskStream, before: Evaluated | None) -> None:
        self.learner = learner
        self.device: torch.device | None = getattr(learner, "device", None)
        self._l_p = self._l_s = 0.0
        self._pending: list[Tensor] = []  # losses not read yet
        self._data: list[Labelled] = []
        if before is not None:
            self._l_p, self._l_s = before.l_p or 0.0, before.l_s or 0.0
            x, y = concatenate([stream.training(task) for task in range(before.task + 1)])
            self._data.append(_moved((x[: before.seen], y[: before.seen]), self.device))

    def arrive(self, batch: StreamBatch) -> None:
        """Predict a batch that is about to be learned."""
        self._pending.append(squared_error(self.learner, batch.x, batch.y))
        self._data.append(_moved((batch.x, batch.y), self.device))

    def evaluate(self, batch: StreamBatch) -> Result:
        """Start to predict all data so far."""
        self._data = [concatenate(self._data)]
        everything = squared_error(self.learner, *self._data[0])
        pending, self._pending = self._pending, []

        def result() -> dict[str, Any]:
            self._l_s += float(everything)
            for loss in pending:
                self._l_p += float(loss)
            return {"correct": (), "sizes": (), "l_p": self._l_p, "l_s": self._l_s}

        return result

    def release(self) -> None:
        """Free the data of the stream."""
        self._data.clear()

    def test(self, most: int) -> Counts:
        """Count nothing: regression has no test data."""
        return Counts(correct=(), sizes=())


class _HeldOut:
    """The validation data of all tasks in one tensor, for one prediction an evaluation."""

    def __init__(self, learner: Predictor, stream: TaskStream, *, optional: bool) -> None:
        parts = [stream.validation(task) for task in range(stream.tasks)]
        self.learner = learner
        self.sizes = tuple(len(y) for _, y in parts)
        if not any(self.sizes) and optional:
            return
        if 0 in self.sizes:
            raise InputError(
                f"Task {self.sizes.index(0)} has no validation data. Make the stream with "
                "validation greater than 0, or evaluate with online=True a stream without any."
            )
        x, self.y = _moved(concatenate(parts), getattr(learner, "device", None))
        self.task_of = torch.repeat_interleave(
            torch.arange(len(self.sizes)), torch.tensor(self.sizes)
        ).to(self.y.device)
        prepare = getattr(learner, "predict_repeatedly", None)
        # From n and a function of logits to that function of the logits of the first n samples.
        self.predict: Callable[[int, Callable[[Tensor], Later]], Later] = (
            (lambda n, use: use(learner.predict(x[:n]))) if prepare is None else prepare(x)
        )

    def correct(self, task: int) -> tuple[Later, tuple[int, ...]]:
        """Correct predictions for each task up to ``task``, and the samples of each."""
        if not any(self.sizes):
            return Later(torch.empty(0, dtype=torch.int64)), ()
        sizes = self.sizes[: task + 1]
        n = sum(sizes)

        def count(logits: Tensor) -> Later:
            hits = _compare(self.learner, logits, self.y[:n])
            counts = torch.zeros(task + 1, dtype=torch.int64, device=hits.device)
            return Later(counts.index_add_(0, self.task_of[:n].to(hits.device), hits))

        return self.predict(n, count), sizes


def _moved(data: Labelled, device: torch.device | None) -> Labelled:
    return data if device is None else (data[0].to(device), data[1].to(device))


@torch.no_grad()
def hits(learner: Predictor, x: Inputs, y: Tensor) -> Tensor:
    """1 for each correct prediction, else 0: ``(n,)`` int64 on the learner's device."""
    return _compare(learner, learner.predict(x), y)


def _compare(learner: Predictor, logits: Tensor, y: Tensor) -> Tensor:
    """1 where the highest logit is that of the label, else 0: ``(n,)`` int64."""
    classes = torch.tensor(learner.classes, dtype=torch.int64)
    if logits.shape != (len(y), len(classes)):
        raise InputError(
            f"The learner predicts {tuple(logits.shape)} for {len(y)} samples and knows "
            f"{len(classes)} classes. Must be one row a sample, one column a class."
        )
    if len(classes) == 0:
        return torch.zeros(len(y), dtype=torch.int64, device=logits.device)
    labels = classes.to(logits.device, non_blocking=True)
    return (labels[logits.argmax(dim=1)] == y.to(logits.device, non_blocking=True)).long()


@torch.no_grad()
def squared_error(learner: Predictor, x: Inputs, y: Tensor) -> Tensor:
    """Mean squared error, a scalar on the learner's device."""
    outputs = learner.predict(x)
    if outputs.shape != y.shape:
        raise InputError(
            f"The learner predicts {tuple(outputs.shape)} for targets of {tuple(y.shape)}."
        )
    return functional.mse_loss(outputs, y.to(outputs))
