"""Class-incremental streams: the classes of a data set, a few at a time."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from ocar.errors import CheckpointError, ConfigError, DataError
from ocar.rng import make_generator
from ocar.streams.datasets import Arrays


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamBatch:
    """One mini-batch as it arrives."""

    x: torch.Tensor
    """Images ``(n, channels, height, width)``, uint8."""

    y: torch.Tensor
    """Labels ``(n,)``, int64, numbered by appearance."""

    task: int
    """Which task it is from; for evaluation, learners are not told."""

    index: int
    """Its place in the whole stream, from 0."""

    complete: bool
    """False for a task's last batch when it is short: it is remembered, not trained on."""

    last: bool
    """Whether it is the last one of its task."""


class ClassIncremental:
    """A data set split in tasks of equally many classes, each seen once, in batches.

    Classes come in an order that depends on the seed and are numbered by it: task ``t`` of
    ``k`` classes has labels ``t·k .. t·k + k − 1``. Each task keeps a random part of its
    training data for validation; the rest is shuffled and cut in batches. All of it follows
    from the seed, so where a stream stands is one number.

    Iterating goes on from ``position`` and moves it, a batch counting as seen once it is
    given; :meth:`reset` goes back to the start. Batches are on the device of ``arrays``.

    Args:
        arrays: The data.
        tasks: How many tasks; must divide the number of classes.
        batch_size: Samples in a complete batch.
        validation: Part of each task's training data that is kept for validation.
        seed: Decides class order, validation data and the order of samples.
        iid: Put all classes in one task, whatever ``tasks`` says.

    Attributes:
        tasks: How many tasks there are, 1 when ``iid``.
        class_order: The data set's own label of each class, by order of appearance.
        position: Index of the batch that comes next.
    """

    def __init__(
        self,
        arrays: Arrays,
        *,
        tasks: int,
        batch_size: int = 10,
        validation: float = 0.05,
        seed: int = 0,
        iid: bool = False,
    ) -> None:
        originals = torch.unique(arrays.y_train).cpu()
        classes = len(originals)
        if tasks < 1 or classes % tasks:
            raise ConfigError(
                f"Invalid {tasks=}. Must divide the {classes} classes of {arrays.name}."
            )
        if batch_size < 1:
            raise ConfigError(f"Invalid {batch_size=}. Must be at least 1.")
        if not 0 <= validation < 1:
            raise ConfigError(f"Invalid {validation=}. Must be in [0, 1).")
        order = torch.randperm(classes, generator=make_generator(seed, "class-order"))
        self.arrays = arrays
        self.batch_size = batch_size
        self.seed = seed
        self.iid = iid
        self.tasks = 1 if iid else tasks
        self.class_order: tuple[int, ...] = tuple(originals[order].tolist())
        self.position = 0

        rank = torch.argsort(order)  # of a sorted original label, its place in the order
        self._y_train = _renumber(arrays.y_train, originals, rank)
        self._y_test = _renumber(arrays.y_test, originals, rank, name=arrays.name)
        self._train: list[torch.Tensor] = []
        self._validation: list[torch.Tensor] = []
        for task in range(self.tasks):
            members = self._members(self._y_train.cpu(), task)
            generator = make_generator(seed, f"split/{task}")
            members = members[torch.randperm(len(members), generator=generator)]
            held_out = max(1, round(validation * len(members))) if validation > 0 else 0
            if held_out >= len(members):
                raise ConfigError(
                    f"Invalid {validation=}. Leaves nothing of the {len(members)} samples of "
                    f"task {task} of {arrays.name} to learn from."
                )
            if not len(self._members(self._y_test, task)):
                raise DataError(f"{arrays.name} has no test data for task {task}.")
            self._validation.append(members[:held_out].to(arrays.x_train.device))
            self._train.append(members[held_out:].to(arrays.x_train.device))
        sizes = (-(-len(indices) // batch_size) for indices in self._train)
        self._ends = list(itertools.accumulate(sizes))  # of each task, the batch after its last

    @property
    def classes(self) -> int:
        """Number of classes in the whole stream."""
        return len(self.class_order)

    def task_classes(self, task: int) -> range:
        """The labels of ``task``, as learners see them."""
        per_task = self.classes // self.tasks
        return range(task * per_task, (task + 1) * per_task)

    def __len__(self) -> int:
        """Batches in the whole stream, complete or not."""
        return self._ends[-1]

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches from ``position`` on."""
        while self.position < len(self):
            self.position += 1
            yield self._batch(self.position - 1)

    def reset(self) -> None:
        """Go back to the first batch."""
        self.position = 0

    def validation(self, task: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Validation images ``(n, c, h, w)`` and labels ``(n,)`` of one task."""
        indices = self._validation[task]
        return self.arrays.x_train[indices], self._y_train[indices]

    def test(self, task: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Test images ``(n, c, h, w)`` and labels ``(n,)`` of one task."""
        indices = self._members(self._y_test, task)
        return self.arrays.x_test[indices], self._y_test[indices]

    def state_dict(self) -> dict[str, int]:
        """Where the stream stands; all else follows from the arguments."""
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to where another stream, made with the same arguments, stood."""
        if set(state) != {"position"}:
            raise CheckpointError(f"Invalid stream state with {sorted(state)}. Must be position.")
        position = state["position"]
        if not isinstance(position, int) or not 0 <= position <= len(self):
            raise CheckpointError(f"Invalid stream {position=}. Must be in 0..{len(self)}.")
        self.position = position

    def _members(self, y: torch.Tensor, task: int) -> torch.Tensor:
        labels = self.task_classes(task)
        return torch.nonzero((y >= labels.start) & (y < labels.stop)).flatten()

    def _batch(self, index: int) -> StreamBatch:
        task = bisect.bisect_right(self._ends, index)
        first = self._ends[task - 1] if task else 0
        start = (index - first) * self.batch_size
        indices = self._train[task][start : start + self.batch_size]
        return StreamBatch(
            x=self.arrays.x_train[indices],
            y=self._y_train[indices],
            task=task,
            index=index,
            complete=len(indices) == self.batch_size,
            last=index == self._ends[task] - 1,
        )


def _renumber(
    y: torch.Tensor, originals: torch.Tensor, rank: torch.Tensor, *, name: str = ""
) -> torch.Tensor:
    """Labels ``(n,)`` by order of appearance, given the sorted ``originals`` and their rank."""
    originals, rank = originals.to(y.device), rank.to(y.device)
    place = torch.searchsorted(originals, y).clamp_(max=len(originals) - 1)
    if not torch.equal(originals[place], y):
        raise DataError(f"{name} has test labels that its training data does not have.")
    return rank[place]
