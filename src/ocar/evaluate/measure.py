"""What is measured while a learner goes through a stream, and on which data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from ocar.errors import InputError
from ocar.evaluate.later import Later
from ocar.events import Counts, Evaluated
from ocar.metrics import CumulativeLoss
from ocar.streams.base import Labelled, StreamBatch, TaskStream, concatenate

T = TypeVar("T")


class Predictor(Protocol):
    """What can be tried on data."""

    @property
    def classes(self) -> tuple[int, ...]:
        """The label that each column of :meth:`predict` stands for: the classes seen so far."""

    def predict(self, x: Tensor, /) -> Tensor:
        """Logits ``(n, len(classes))`` of raw samples ``(n, ...)``, or ``(n, outputs)``."""


Answer = Callable[[float], Evaluated]
"""From the seconds of training so far to an evaluation; it may wait for the device."""


class Measure(ABC):
    """Looks at each batch before it is learned, and at the learner when it is asked.

    Args:
        learner: What is measured; held-out data is kept on its ``device`` if it has one.
        stream: Where it learns.
        before: The evaluation before, where the stream goes on from the middle.

    Attributes:
        predicts: Whether it predicts each batch before it is learned.
    """

    predicts: bool = True

    def __init__(self, learner: Predictor, stream: TaskStream, before: Evaluated | None) -> None:
        self.learner = learner
        self.stream = stream
        self.device: torch.device | None = getattr(learner, "device", None)
        self.seen = 0 if before is None else before.seen

    def arrive(self, batch: StreamBatch) -> None:
        """A batch is there and has not been learned."""
        self.seen += len(batch.y)

    @abstractmethod
    def evaluate(self, batch: StreamBatch) -> Answer:
        """Try the learner after a batch.

        Args:
            batch: The batch.

        Returns:
            What to ask for the evaluation later: it may wait for the device.
        """

    @abstractmethod
    def release(self) -> None:
        """No evaluation follows: give back what they needed."""

    @abstractmethod
    def test(self, most: int) -> Counts:
        """Try the learner on the test data, ``most`` samples at once."""


class Classification(Measure):
    """Correct predictions on the validation data of the tasks so far.

    Args:
        learner: What is measured.
        stream: Where it learns.
        before: The evaluation before, where the stream goes on from the middle.
        online: Whether to count correct predictions on each batch before it is learned.
    """

    def __init__(
        self, learner: Predictor, stream: TaskStream, before: Evaluated | None, *, online: bool
    ) -> None:
        super().__init__(learner, stream, before)
        self.predicts = online
        self._online: int | Tensor = 0 if before is None else before.online_correct or 0
        self._held_out: _HeldOut | None = None

    def arrive(self, batch: StreamBatch) -> None:
        """Predict the batch, if that is asked for."""
        super().arrive(batch)
        if self.predicts:
            self._online = _hits(self.learner, batch.x, batch.y).sum() + self._online

    def evaluate(self, batch: StreamBatch) -> Answer:
        """Count correct predictions for each task up to that of the batch."""
        if self._held_out is None:
            self._held_out = _HeldOut(
                self.learner, self.stream, self.device, needed=not self.predicts
            )
        correct, sizes = self._held_out.correct(batch.task)
        online, seen = self._online if self.predicts else None, self.seen

        def answer(seconds: float) -> Evaluated:
            return Evaluated(
                index=batch.index,
                task=batch.task,
                correct=tuple(correct()),
                sizes=sizes,
                seconds=seconds,
                seen=seen,
                online_correct=None if online is None else int(online),
            )

        return answer

    def release(self) -> None:
        """Drop the validation data and what predicts it."""
        self._held_out = None

    def test(self, most: int) -> Counts:
        """Count correct predictions on the test data of each task."""
        correct, sizes = [], []
        for task in range(self.stream.tasks):
            x, y = self.stream.test(task)
            pieces = zip(x.split(most), y.split(most), strict=True) if len(y) else ()
            correct.append(sum(int(_hits(self.learner, *piece).sum()) for piece in pieces))
            sizes.append(len(y))
        return Counts(correct=tuple(correct), sizes=tuple(sizes))


class Regression(Measure):
    """L_p on each batch before it is learned, L_s on all that the stream has given.

    Args:
        learner: What is measured.
        stream: Where it learns.
        before: The evaluation before, where the stream goes on from the middle.
    """

    def __init__(self, learner: Predictor, stream: TaskStream, before: Evaluated | None) -> None:
        super().__init__(learner, stream, before)
        self._l_p, self._l_s = CumulativeLoss(), CumulativeLoss()
        self._pending: list[Tensor] = []  # not yet waited for
        self._data: list[Labelled] = []
        if before is not None:
            self._l_p = CumulativeLoss(before.l_p or 0.0)
            self._l_s = CumulativeLoss(before.l_s or 0.0)
            given = concatenate([stream.training(task) for task in range(before.task + 1)])
            self._keep(given[0][: self.seen], given[1][: self.seen])

    def arrive(self, batch: StreamBatch) -> None:
        """Predict the batch."""
        super().arrive(batch)
        self._pending.append(_squared_error(self.learner, batch.x, batch.y))
        self._keep(batch.x, batch.y)

    def evaluate(self, batch: StreamBatch) -> Answer:
        """Predict all data so far."""
        self._data = [concatenate(self._data)]
        everything = _squared_error(self.learner, *self._data[0])
        pending, self._pending = self._pending, []
        seen = self.seen

        def answer(seconds: float) -> Evaluated:
            self._l_s.update(float(everything))
            for loss in pending:
                self._l_p.update(float(loss))
            return Evaluated(
                index=batch.index,
                task=batch.task,
                correct=(),
                sizes=(),
                seconds=seconds,
                seen=seen,
                l_p=self._l_p.compute(),
                l_s=self._l_s.compute(),
            )

        return answer

    def release(self) -> None:
        """Drop the data of the stream."""
        self._data.clear()

    def test(self, most: int) -> Counts:
        """Nothing is counted in regression."""
        return Counts(correct=(), sizes=())

    def _keep(self, x: Tensor, y: Tensor) -> None:
        self._data.append((x.to(self.device), y.to(self.device)) if self.device else (x, y))


class _HeldOut:
    """The validation data of all tasks in one piece, so that one predict does.

    Args:
        learner: What is tried on it.
        stream: Where it is from.
        device: Where to keep it; where it is if not given.
        needed: Whether it is an error if there is none at all.
    """

    def __init__(
        self,
        learner: Predictor,
        stream: TaskStream,
        device: torch.device | None,
        *,
        needed: bool,
    ) -> None:
        parts = [stream.validation(task) for task in range(stream.tasks)]
        self.sizes = tuple(len(y) for _, y in parts)
        self.empty = not any(self.sizes)
        if self.empty and not needed:
            return
        if 0 in self.sizes:
            raise InputError(
                f"Task {self.sizes.index(0)} has no validation data. Make the stream with "
                "validation greater than 0, or evaluate with online=True a stream without any."
            )
        x, y = concatenate(parts)
        x, self.y = (x, y) if device is None else (x.to(device), y.to(device))
        self.task_of = torch.repeat_interleave(
            torch.arange(len(self.sizes)), torch.tensor(self.sizes)
        ).to(self.y.device)
        self.learner = learner
        prepare = getattr(learner, "predict_repeatedly", None)
        self.predict: _Repeated = _Plain(learner, x) if prepare is None else prepare(x)

    def correct(self, task: int) -> tuple[Callable[[], list[int]], tuple[int, ...]]:
        """Correct predictions for each task up to ``task``, and their samples.

        The former are to be asked for: they may still be on their way.
        """
        if self.empty:
            return list, ()
        sizes = self.sizes[: task + 1]
        n = sum(sizes)

        def count(logits: Tensor) -> Tensor:
            hits = _compare(self.learner, logits, self.y[:n])
            counts = torch.zeros(task + 1, dtype=torch.int64, device=hits.device)
            return counts.index_add_(0, self.task_of[:n].to(hits.device), hits)

        counts = self.predict(n, lambda logits: Later(count(logits)))

        def look() -> list[int]:
            found: list[int] = counts.read().tolist()
            return found

        return look, sizes


class _Repeated(Protocol):
    """What can be made of the predictions of the first samples, again and again."""

    def __call__(self, n: int, use: Callable[[Tensor], T], /) -> T: ...


class _Plain:
    def __init__(self, learner: Predictor, x: Tensor) -> None:
        self.learner = learner
        self.x = x

    def __call__(self, n: int, use: Callable[[Tensor], T], /) -> T:
        return use(self.learner.predict(self.x[:n]))


@torch.no_grad()
def _hits(learner: Predictor, x: Tensor, y: Tensor) -> Tensor:
    """1 where the learner is right, else 0: ``(n,)`` int64 on the learner's device."""
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
def _squared_error(learner: Predictor, x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error, a scalar on the learner's device."""
    outputs = learner.predict(x)
    if outputs.shape != y.shape:
        raise InputError(
            f"The learner predicts {tuple(outputs.shape)} for targets of {tuple(y.shape)}."
        )
    return functional.mse_loss(outputs, y.to(outputs))
