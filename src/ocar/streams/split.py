"""Class-incremental streams: the classes of a data set, a few at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ocar.errors import ConfigError, DataError
from ocar.rng import make_generator
from ocar.streams.arrays import LabelledSet, TaskArrays, as_task
from ocar.streams.base import StreamBatch
from ocar.streams.indexed import IndexedStream, Part
from ocar.streams.samples import Samples, Source

__all__ = ["ClassIncremental", "StreamBatch"]


class ClassIncremental(IndexedStream):
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
        blurry: Part of each task's samples that change places with other tasks', see
            :func:`~ocar.streams.blur.blur`; classes then appear before their task.

    Attributes:
        tasks: How many tasks there are, 1 when ``iid``.
        class_order: The data set's own label of each class, by order of appearance.
        position: Index of the batch that comes next.
    """

    def __init__(
        self,
        arrays: LabelledSet | TaskArrays,
        *,
        tasks: int,
        batch_size: int = 10,
        validation: float = 0.05,
        seed: int = 0,
        iid: bool = False,
        blurry: float = 0.0,
    ) -> None:
        data = as_task(arrays)
        if data.y_train.is_floating_point():
            raise DataError(f"{data.name} has targets of {data.y_train.dtype}. Must have labels.")
        originals = torch.unique(data.y_train).cpu()
        classes = len(originals)
        if tasks < 1 or classes % tasks:
            raise ConfigError(
                f"Invalid {tasks=}. Must divide the {classes} classes of {data.name}."
            )
        order = torch.randperm(classes, generator=make_generator(seed, "class-order"))
        self.arrays = arrays
        self.iid = iid
        self.class_order: tuple[int, ...] = tuple(originals[order].tolist())
        rank = torch.argsort(order)  # of a sorted original label, its place in the order
        per_task = classes if iid else classes // tasks

        def numbered(part: str) -> tuple[Samples, list[Tensor]] | None:
            """The samples of a part with their labels by appearance, and the rows of each task."""
            source = data.source(part)
            if source is None:
                return None
            y = _renumber(source.y, originals, rank, name=f"{data.name} has {part}")
            rows = [
                torch.nonzero((y >= first) & (y < first + per_task)).flatten().cpu()
                for first in range(0, classes, per_task)
            ]
            empty = [task for task, mine in enumerate(rows) if not len(mine)]
            if empty:
                raise DataError(f"{data.name} has no {part} data for task {empty[0]}.")
            return Samples([Source(x=source.x, y=y, view=source.view)]), rows

        train = numbered("train")
        assert train is not None
        samples, rows = train
        held_out: dict[str, list[Part | None]] = {}
        for part in ("validation", "test"):
            found = numbered(part)
            held_out[part] = (
                [None] * len(rows) if found is None else [Part(found[0], r) for r in found[1]]
            )
        super().__init__(
            samples,
            rows,
            test=held_out["test"],
            own_validation=held_out["validation"],
            batch_size=batch_size,
            validation=validation,
            seed=seed,
            blurry=blurry,
            name=data.name,
        )

    @property
    def classes(self) -> int:
        """Number of classes in the whole stream."""
        return len(self.class_order)

    def task_classes(self, task: int) -> range:
        """The labels of ``task``, as learners see them."""
        per_task = self.classes // self.tasks
        return range(task * per_task, (task + 1) * per_task)


def _renumber(y: Tensor, originals: Tensor, rank: Tensor, *, name: str) -> Tensor:
    """Labels ``(n,)`` by order of appearance, given the sorted ``originals`` and their rank."""
    originals, rank = originals.to(y.device), rank.to(y.device)
    place = torch.searchsorted(originals, y).clamp_(max=len(originals) - 1)
    if not torch.equal(originals[place], y):
        raise DataError(f"{name} labels that its training data does not have.")
    return rank[place]
