"""Streams over anything that can be iterated, such as a ``DataLoader`` or a generator."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ocar.errors import CheckpointError, ConfigError, InputError
from ocar.streams.base import (
    Labelled,
    StreamBatch,
    check_task,
    concatenate,
    empty_like,
    read_position,
)

Pairs = Iterable[tuple[Any, Any]]
"""Batches ``(x, y)`` of tensors, or of what ``torch.as_tensor`` takes."""


class IterableStream:
    """Batches of the user's, one iterable a task.

    Where the stream stands is the number of batches given. To go on from the middle it goes
    through the iterables again and leaves out what was given before, so these have to give the
    same batches each time. A generator can be gone through once only: it can be learned from,
    but not reset or gone back in.

    Args:
        *tasks: The batches of each task; one iterable if nothing is known of tasks.
        batch_size: Samples in a complete batch: a task's last batch with fewer is remembered and
            not trained on. Without it every batch is complete.
        validation: Validation samples of each task; none by default.
        test: Test samples of each task; none by default.

    Attributes:
        position: Index of the batch that comes next.
    """

    def __init__(
        self,
        *tasks: Pairs,
        batch_size: int | None = None,
        validation: Sequence[tuple[Any, Any]] = (),
        test: Sequence[tuple[Any, Any]] = (),
    ) -> None:
        if not tasks:
            raise ConfigError("A stream must have at least one task; given none.")
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"Invalid {batch_size=}. Must be at least 1, or None.")
        for name, given in (("validation", validation), ("test", test)):
            if given and len(given) != len(tasks):
                raise ConfigError(
                    f"Invalid {name} data of {len(given)} tasks. Must be of all {len(tasks)}."
                )
        self.batch_size = batch_size
        self.position = 0
        self._tasks = tasks
        self._validation = [as_labelled(pair) for pair in validation]
        self._test = [as_labelled(pair) for pair in test]
        self._shapes: Labelled | None = None  # one batch, for what has none
        self._live: Iterator[StreamBatch] | None = None
        self._used: set[int] = set()  # tasks whose iterator can be gone through once, and was

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self._tasks)

    def __length_hint__(self) -> int:
        """Batches in the whole stream, 0 if an iterable does not know."""
        lengths = [operator.length_hint(task) for task in self._tasks]
        return sum(lengths) if all(lengths) else 0

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches from ``position`` on."""
        if self._live is None:
            self._live = self._from(self.position)
        for batch in self._live:
            self.position = batch.index + 1
            yield batch

    def reset(self) -> None:
        """Go back to the first batch."""
        self.position = 0
        self._live = None

    def training(self, task: int) -> Labelled:
        """Samples ``(n, ...)`` and labels that one task gives to learn from, in its order."""
        check_task(task, self.tasks)
        return concatenate([as_labelled(pair) for pair in self._open(task)])

    def validation(self, task: int) -> Labelled:
        """Validation samples ``(n, ...)`` and labels of one task; n may be 0."""
        return self._held_out(self._validation, task)

    def test(self, task: int) -> Labelled:
        """Test samples ``(n, ...)`` and labels of one task; n may be 0."""
        return self._held_out(self._test, task)

    def state_dict(self) -> dict[str, int]:
        """Where the stream stands; all else follows from the arguments."""
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to where another stream, made with the same arguments, stood."""
        position = read_position(state)
        if position != self.position:
            self.position = position
            self._live = None

    def _from(self, position: int) -> Iterator[StreamBatch]:
        batches = self._batches()
        skipped = sum(1 for _ in itertools.islice(batches, position))
        if skipped < position:
            raise CheckpointError(f"Invalid stream {position=}. Must be in 0..{skipped}.")
        return batches

    def _batches(self) -> Iterator[StreamBatch]:
        """All batches, each given once it is known whether another follows in its task."""
        index = itertools.count()
        for task in range(self.tasks):
            pairs = map(as_labelled, self._open(task))
            held = next(pairs, None)
            if held is None:
                raise InputError(f"Task {task} has no batches.")
            for following in itertools.chain(pairs, [None]):
                x, y = held
                self._shapes = self._shapes or empty_like(x, y)
                yield StreamBatch(
                    x=x,
                    y=y,
                    task=task,
                    index=next(index),
                    complete=self.batch_size is None or len(y) >= self.batch_size,
                    last=following is None,
                )
                if following is not None:
                    held = following

    def _open(self, task: int) -> Iterator[tuple[Any, Any]]:
        iterable = self._tasks[task]
        iterator = iter(iterable)
        if iterator is iterable:
            if task in self._used:
                raise InputError(
                    f"Task {task} is an iterator that has been gone through. Give something that "
                    "can be iterated again, such as a list or a DataLoader."
                )
            self._used.add(task)
        return iterator

    def _held_out(self, data: Sequence[Labelled], task: int) -> Labelled:
        check_task(task, self.tasks)
        if data:
            return data[task]
        return self._shapes or (torch.empty(0, 0), torch.empty(0, dtype=torch.int64))


def as_labelled(pair: tuple[Any, Any]) -> Labelled:
    """Samples and labels as tensors, equally many of both."""
    x, y = (torch.as_tensor(part) for part in pair)
    if x.dim() == 0 or y.dim() == 0 or len(x) != len(y):
        raise InputError(
            f"Invalid batch of x {tuple(x.shape)} and y {tuple(y.shape)}. Must be equally long."
        )
    return x, _labels(y)


def _labels(y: Tensor) -> Tensor:
    """Labels as int64; targets as they are."""
    return y if y.is_floating_point() else y.long()
