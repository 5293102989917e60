"""Streams over arrays that are at hand: each task is a list of rows, given in batches."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ocar.errors import ConfigError
from ocar.rng import make_generator
from ocar.streams.base import Labelled, StreamBatch, check_task, empty_like, read_position
from ocar.streams.blur import blur
from ocar.streams.samples import Samples


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of some samples."""

    samples: Samples
    rows: Tensor

    def take(self) -> Labelled:
        """The samples and their labels."""
        return self.samples.take(self.rows)


class IndexedStream:
    """Tasks that are rows of arrays, each row seen once, in batches.

    Each task keeps a random part of its training data for validation, unless it brings its own;
    the rest is shuffled, blurred if that is asked for, and cut in batches. All of it follows from
    the arguments, so where a stream stands is one number.

    Iterating goes on from ``position`` and moves it, a batch counting as seen once it is given;
    :meth:`reset` goes back to the start. Batches are on the device of the arrays.

    Args:
        train: The training data of all tasks.
        rows: The rows of each task, ``(n_t,)`` int64 on the host.
        test: Test data of each task; None where there is none.
        own_validation: Validation data that tasks bring; None where it is split off.
        batch_size: Samples in a complete batch.
        validation: Part of a task's training data that is kept for validation.
        seed: Decides the order of samples and, without ``split_seed``, which are validation data.
        split_seed: Decides the validation data alone, so that it is the same for every seed.
        blurry: Part of each task's samples that change places with other tasks', see
            :func:`~ocar.streams.blur.blur`. Validation and test data stay with their task.
        shuffle: Whether a task's samples come in random order, or as they are in the arrays.
        name: What the data is called, for messages.

    Attributes:
        position: Index of the batch that comes next.
        data: What the arrays belong to, where others may want to share it.
    """

    data: object = None

    def __init__(
        self,
        train: Samples,
        rows: Sequence[Tensor],
        *,
        test: Sequence[Part | None],
        own_validation: Sequence[Part | None] | None = None,
        batch_size: int = 10,
        validation: float = 0.05,
        seed: int = 0,
        split_seed: int | None = None,
        blurry: float = 0.0,
        shuffle: bool = True,
        name: str = "the data",
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"Invalid {batch_size=}. Must be at least 1.")
        if not 0 <= validation < 1:
            raise ConfigError(f"Invalid {validation=}. Must be in [0, 1).")
        self.batch_size = batch_size
        self.seed = seed
        self.split_seed = split_seed
        self.blurry = blurry
        self.position = 0
        self._samples = train
        self._test = list(test)
        self._validation: list[Part | None] = []
        given = [None] * len(rows) if own_validation is None else own_validation
        learned = []
        for task, (members, own) in enumerate(zip(rows, given, strict=True)):
            held_out = 0
            if own is None and validation > 0:
                held_out = max(1, round(validation * len(members)))
            if held_out >= len(members):
                raise ConfigError(
                    f"Invalid {validation=}. Leaves nothing of the {len(members)} samples of "
                    f"task {task} of {name} to learn from."
                )
            shuffled = self._shuffled(members, task, held_out)
            split_off = Part(train, shuffled[:held_out]) if held_out else None
            self._validation.append(split_off if own is None else own)
            left = shuffled[held_out:]
            learned.append(left if shuffle else left.sort().values)
        self._rows = blur(learned, fraction=blurry, generator=make_generator(seed, "blurry"))
        sizes = (-(-len(rows) // batch_size) for rows in self._rows)
        self._ends = list(itertools.accumulate(sizes))  # of each task, the batch after its last

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self._rows)

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

    def training(self, task: int) -> Labelled:
        """Samples ``(n, ...)`` and labels that one task gives to learn from, in its order."""
        check_task(task, self.tasks)
        return self._samples.take(self._rows[task])

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
        self.position = read_position(state, length=len(self))

    def _shuffled(self, members: Tensor, task: int, held_out: int) -> Tensor:
        """The rows of a task, those of validation first."""
        name, n = f"split/{task}", len(members)
        if self.split_seed is None:
            return members[torch.randperm(n, generator=make_generator(self.seed, name))]
        members = members[torch.randperm(n, generator=make_generator(self.split_seed, name))]
        order = make_generator(self.seed, f"order/{task}")
        rest = held_out + torch.randperm(n - held_out, generator=order)
        return torch.cat([members[:held_out], members[rest]])

    def _held_out(self, parts: Sequence[Part | None], task: int) -> Labelled:
        check_task(task, self.tasks)
        part = parts[task]
        if part is None:
            source = self._samples.sources[0]
            return empty_like(source.x, source.y)
        return part.take()

    def _batch(self, index: int) -> StreamBatch:
        task = bisect.bisect_right(self._ends, index)
        first = self._ends[task - 1] if task else 0
        start = (index - first) * self.batch_size
        rows = self._rows[task][start : start + self.batch_size]
        x, y = self._samples.take(rows)
        return StreamBatch(
            x=x,
            y=y,
            task=task,
            index=index,
            complete=len(rows) == self.batch_size,
            last=index == self._ends[task] - 1,
        )
