"""Streams over anything that can be iterated, such as a ``DataLoader``, a reader or a generator."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ocar.config import require
from ocar.errors import CheckpointError, ConfigError, InputError
from ocar.streams.base import (
    Labelled,
    PositionedStream,
    StreamBatch,
    check_task,
    concatenate,
    read_position,
)
from ocar.streams.readers import PAIR, Place, Reader, as_pair
from ocar.structure import as_samples, as_tensor, describe

Pairs = Iterable[tuple[Any, Any]]
"""Batches ``(x, y)`` of tensors, arrays, or anything that ``torch.as_tensor`` takes; x may be a
tuple or a dictionary of tensors or arrays."""


class Mark(NamedTuple):
    """Where a stream of readers goes on."""

    task: int
    place: Place | None  #: Of the task's reader; None for its first batch.


class IterableStream(PositionedStream):
    """The user's batches, one iterable a task.

    To resume in the middle, a reader (:mod:`ocar.streams.readers`) goes on from its place. Of other
    iterables the stream skips the batches given before, so they must give the same batches each
    time. A generator can be iterated only once: it can be learned from, but not reset or rewound.

    Args:
        *tasks: The batches of each task; one iterable if tasks are not known.
        batch_size: Samples in a complete batch: a task's last batch with fewer is remembered and
            not trained on. By default every batch is complete.
        validation: Validation samples of each task; none by default.
        test: Test samples of each task; none by default.
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
        valid = batch_size is None or batch_size >= 1
        require("batch_size", batch_size, valid, "at least 1, or None")
        for number, task in enumerate(tasks):
            if not isinstance(task, Iterable):
                raise ConfigError(
                    f"Invalid task {number}: {type(task).__name__}. Must be iterable: a list, a "
                    "DataLoader, a reader or a generator of batches (x, y)."
                )
        given = {"validation": validation, "test": test}
        for name, parts in given.items():
            if parts and len(parts) != len(tasks):
                raise ConfigError(
                    f"Invalid {name} data of {len(parts)} tasks. Must be of all {len(tasks)}."
                )
        self.tasks = len(tasks)
        self.batch_size = batch_size
        self._tasks = tasks
        self._parts = {
            name: [
                as_labelled(p, f"The {name} data of task {task}") for task, p in enumerate(parts)
            ]
            for name, parts in given.items()
        }
        self._empty: Labelled = (torch.empty(0, 0), torch.empty(0, dtype=torch.int64))
        self._live: Iterator[tuple[StreamBatch, Mark | None]] | None = None
        self._mark: Mark | None = None  # where to go on, of a reader
        self._used: set[int] = set()  # tasks whose iterator is exhausted

    def __length_hint__(self) -> int:
        """Batches in the whole stream, 0 if an iterable does not know."""
        lengths = [operator.length_hint(task) for task in self._tasks]
        return sum(lengths) if all(lengths) else 0

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches from ``position`` on."""
        if self._live is None and self._mark is not None:
            self._live = self._batches(self._mark, self.position)
        elif self._live is None:
            batches, position = self._batches(Mark(0, None), 0), self.position
            skipped = sum(1 for _ in itertools.islice(batches, position))
            if skipped < position:
                raise CheckpointError(f"Invalid stream {position=}. Must be in 0..{skipped}.")
            self._live = batches
        for batch, mark in self._live:
            self.position, self._mark = batch.index + 1, mark
            yield batch

    def training(self, task: int) -> Labelled:
        """All training data of one task: samples ``(n, ...)`` and labels, in order."""
        pairs = self._open(check_task(task, self.tasks))
        return concatenate([as_labelled(pair) for pair in pairs])

    def reset(self) -> None:
        """Go back to the first batch."""
        self.position, self._live, self._mark = 0, None, None

    def state_dict(self) -> dict[str, int]:
        """The position, and the place of a reader."""
        if self._mark is None:
            return {"position": self.position}
        place = {f"place.{name}": number for name, number in (self._mark.place or {}).items()}
        return {"position": self.position, "task": self._mark.task, **place}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the position of another stream made with the same arguments."""
        marks = {name: n for name, n in state.items() if name.startswith("place.")}
        place = {name.removeprefix("place."): n for name, n in marks.items()}
        own = {name: n for name, n in state.items() if name not in marks}
        task = own.pop("task", None)
        position = read_position(own)
        fits = task is None or (isinstance(task, int) and 0 <= task <= self.tasks)
        if not fits or (place and (task is None or not self._reads(task))):
            raise CheckpointError(
                f"Invalid stream state {dict(state)}. Must be of a stream with the same tasks."
            )
        if position != self.position:
            self.position, self._live = position, None
            self._mark = None if task is None else Mark(task, place or None)

    def _reads(self, task: int) -> bool:
        """Whether a task is a reader."""
        return task < self.tasks and isinstance(self._tasks[task], Reader)

    def _held_out(self, part: str, task: int) -> Labelled:
        data = self._parts[part]
        return data[task] if data else self._empty

    def _batches(self, start: Mark, index: int) -> Iterator[tuple[StreamBatch, Mark | None]]:
        """Batches; each is given once it is known whether another follows in its task."""
        for task in range(start.task, self.tasks):
            place = start.place if task == start.task else None
            pairs = self._placed(task, place)
            held = next(pairs, None)
            if held is None and place is None:
                raise InputError(f"Task {task} has no batches.")
            if held is None and isinstance(self._tasks[task], Iterator):
                continue  # no message came since
            if held is None:
                raise CheckpointError(
                    f"Task {task} ends before the place {dict(place or {})} of the checkpoint. "
                    "Must have the same batches as before."
                )
            for following in itertools.chain(pairs, [None]):
                (x, y), place = as_labelled(held[0], f"Batch {index}"), held[1]
                self._empty = x[:0], y[:0]
                batch = StreamBatch(
                    x=x,
                    y=y,
                    task=task,
                    index=index,
                    complete=self.batch_size is None or len(y) >= self.batch_size,
                    last=following is None,
                )
                after = Mark(task, place) if following is not None else Mark(task + 1, None)
                yield batch, None if place is None else after
                index += 1
                if following is not None:
                    held = following

    def _placed(
        self, task: int, place: Place | None
    ) -> Iterator[tuple[tuple[Any, Any], Place | None]]:
        """The batches of a task, from a place on, each with the place after it if it has one."""
        source = self._tasks[task]
        if not isinstance(source, Reader):
            return ((pair, None) for pair in self._open(task))
        if place is None and isinstance(source, Iterator):  # of messages
            self._check_unused(task)
        return iter(source.read(place))

    def _open(self, task: int) -> Iterator[tuple[Any, Any]]:
        iterable = self._tasks[task]
        iterator = iter(iterable)
        if iterator is iterable:
            self._check_unused(task)
        return iterator

    def _check_unused(self, task: int) -> None:
        """Raise if a task that can be iterated once has been."""
        if task in self._used:
            raise InputError(
                f"Task {task} is an exhausted iterator. Give something that can be iterated "
                "again, such as a list or a DataLoader."
            )
        self._used.add(task)


def as_labelled(pair: Any, where: str = "The batch") -> Labelled:
    """Samples and labels as tensors of equal length; labels as int64.

    An error calls the pair ``where``.

    Raises:
        InputError: It is no pair of tensors or arrays.
    """
    given, part = as_pair(pair, where), "x"
    try:
        x = as_samples(given[0])
        part = "y"
        y = given[1]
        y = as_tensor(y, "y") if isinstance(y, (Tensor, np.ndarray)) else torch.as_tensor(y)
        if y.is_complex():
            raise TypeError(f"it has {y.dtype}")
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except (TypeError, ValueError, RuntimeError) as error:  # what as_tensor raises
        reason = str(error).rstrip(".")
        raise InputError(f"{where}, its {part}: {reason}. {PAIR}") from error
    scalar = isinstance(x, Tensor) and x.dim() == 0
    if scalar or y.dim() == 0 or len(x) != len(y):
        raise InputError(
            f"{where} has x {describe(x)} and y {tuple(y.shape)}. Must be equally long."
        )
    return x, y if y.is_floating_point() else y.long()
