"""Streams over arrays: each task is a list of rows, given in batches.

Samples are gathered when a batch needs them, and nothing is joined or transformed before. So a data
set may be larger than memory (memory-mapped), or have several views (rotated, permuted).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ocar.config import require
from ocar.errors import ConfigError, DataError
from ocar.rng import make_generator
from ocar.streams.base import Labelled, PositionedStream, StreamBatch, check_task, read_position
from ocar.streams.blur import blur
from ocar.structure import Inputs, apply_whole, cat, parts_of

View = Callable[[Any], Any]
"""A fixed change of the samples of a task, ``(n, ...)`` to the same shape and type."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Arrays that samples come from."""

    x: Inputs  #: Samples ``(n, ...)``.
    y: Tensor  #: Labels ``(n,)`` or targets ``(n, outputs)``.
    view: View | None = None  #: Applied to the samples.

    def take(self, rows: Tensor) -> Inputs:
        """The samples in some rows, ``(len(rows), ...)``."""
        x = self.x[rows.to(self.x.device, non_blocking=True)]
        return x if self.view is None else apply_whole(self.view, x)


class Samples:
    """The rows of several sources, numbered through.

    All samples have one shape and type, that of the source ``like`` if it is given.
    """

    def __init__(self, sources: Sequence[Source], *, like: Source | None = None) -> None:
        first = like or sources[0]
        for source in sources:
            for part, mine, wanted in (("x", source.x, first.x), ("y", source.y, first.y)):
                if _item(mine) != _item(wanted):
                    raise DataError(
                        f"Invalid {part} of {_item(mine)}, after {_item(wanted)}. Must be the same "
                        "in all tasks."
                    )
        self.sources = tuple(sources)
        self.y = torch.cat([s.y for s in sources]) if len(sources) > 1 else sources[0].y
        self._starts = list(itertools.accumulate((len(s.y) for s in sources), initial=0))
        self._ends = torch.tensor(self._starts[1:])

    def rows_of(self, source: int) -> Tensor:
        """The rows of one source, ``(n,)`` int64 on the host."""
        return torch.arange(self._starts[source], self._starts[source + 1])

    def take(self, rows: Tensor) -> Labelled:
        """Samples and labels in some rows, ``(n,)`` int64 on the host."""
        y = self.y[rows.to(self.y.device, non_blocking=True)]
        if len(self.sources) == 1:
            return self.sources[0].take(rows), y
        owner = torch.bucketize(rows, self._ends, right=True)
        present = owner.unique().tolist()
        if len(present) <= 1:
            source = present[0] if present else 0
            return self.sources[source].take(rows - self._starts[source]), y
        places = [torch.nonzero(owner == source).flatten() for source in present]
        pieces = [
            self.sources[source].take(rows[mine] - self._starts[source])
            for source, mine in zip(present, places, strict=True)
        ]
        x = cat(pieces)
        return x[torch.cat(places).argsort().to(x.device)], y


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of some samples."""

    samples: Samples
    rows: Tensor

    def take(self) -> Labelled:
        """The samples and their labels."""
        return self.samples.take(self.rows)


def _item(x: Inputs) -> str:
    """Shape and type of a sample, for a comparison and a message."""
    found = (f"{tuple(p.shape[1:])} {n} a sample, {p.dtype}" for n, p in parts_of(x).items())
    return "; ".join(found).replace("  ", " ")


class IndexedStream(PositionedStream):
    """Tasks that are rows of arrays, each row seen once, in batches.

    Each task keeps a random part of its training data for validation, unless it brings its own.
    The rest is shuffled, blurred if asked for, and cut in batches. All of it follows from the
    arguments. Batches are on the device of the arrays.

    Args:
        train: The training data of each task, rows of the same samples.
        test: Test data of each task, or None.
        own_validation: Validation data of each task; None to split it off the training data.
        name: Name of the data in messages.

    The other arguments are those of :class:`~ocar.streams.arrays.ArrayStream`.

    """

    data: object = None  #: The data set of the arrays; streams on one device share it.

    def __init__(
        self,
        train: Sequence[Part],
        *,
        test: Sequence[Part | None],
        own_validation: Sequence[Part | None],
        batch_size: int = 10,
        validation: float = 0.05,
        seed: int = 0,
        split_seed: int | None = None,
        blurry: float = 0.0,
        shuffle: bool = True,
        name: str = "the data",
    ) -> None:
        require("batch_size", batch_size, batch_size >= 1, "at least 1")
        require("validation", validation, 0 <= validation < 1, "in [0, 1)")
        self.tasks = len(train)
        self.batch_size = batch_size
        self.seed = seed
        self.split_seed = split_seed
        self.blurry = blurry
        self._samples = train[0].samples
        self._parts: dict[str, list[Part | None]] = {"validation": [], "test": list(test)}
        learned = []
        for task, (part, own) in enumerate(zip(train, own_validation, strict=True)):
            held_out, n = 0, len(part.rows)
            if own is None and validation > 0:
                held_out = max(1, round(validation * n))
            if held_out >= n:
                raise ConfigError(
                    f"Invalid {validation=}. Leaves nothing of the {n} samples of task {task} of "
                    f"{name} to learn from."
                )
            shuffled = self._shuffled(part.rows, task, held_out)
            if held_out:
                own = Part(self._samples, shuffled[:held_out])
            self._parts["validation"].append(own)
            left = shuffled[held_out:]
            learned.append(left if shuffle else left.sort().values)
        self._rows = blur(learned, fraction=blurry, generator=make_generator(seed, "blurry"))
        # Of each task, the batch after its last.
        self._ends = list(itertools.accumulate(-(-len(r) // batch_size) for r in self._rows))

    def __len__(self) -> int:
        """Batches in the whole stream, complete or not."""
        return self._ends[-1]

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches from ``position`` on."""
        while self.position < len(self):
            self.position += 1
            yield self._batch(self.position - 1)

    def training(self, task: int) -> Labelled:
        """All training data of one task: samples ``(n, ...)`` and labels, in order."""
        return self._samples.take(self._rows[check_task(task, self.tasks)])

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the position of another stream made with the same arguments."""
        self.position = read_position(state, length=len(self))

    def _shuffled(self, members: Tensor, task: int, held_out: int) -> Tensor:
        """The rows of a task in random order, the validation rows first."""
        name, n = f"split/{task}", len(members)
        if self.split_seed is None:
            return members[torch.randperm(n, generator=make_generator(self.seed, name))]
        members = members[torch.randperm(n, generator=make_generator(self.split_seed, name))]
        order = make_generator(self.seed, f"order/{task}")
        rest = held_out + torch.randperm(n - held_out, generator=order)
        return torch.cat([members[:held_out], members[rest]])

    def _held_out(self, part: str, task: int) -> Labelled:
        found = self._parts[part][task]
        if found is not None:
            return found.take()
        source = self._samples.sources[0]
        return source.x[:0], source.y[:0]

    def _batch(self, index: int) -> StreamBatch:
        task = bisect.bisect_right(self._ends, index)
        start = (index - (self._ends[task - 1] if task else 0)) * self.batch_size
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
