"""Streams over one data set: its classes, a few at a time, or one domain after another.

The rows of the paper's tables share five class orders and five sets of validation data. One
generator, seeded with the seed of the run, draws both, as Avalanche 0.4 does in the survey of
Soutif-Cormerais et al. It first draws the order of the classes, then for each task in turn an order
of its samples. The end of this order is validation data. ``splits="published"`` draws the same
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from ocar.config import require_one_of
from ocar.datasets.arrays import Arrays
from ocar.errors import ConfigError, DataError
from ocar.rng import make_generator
from ocar.streams.arrays import TaskArrays, as_task
from ocar.streams.indexed import IndexedStream, Part, Samples, Source

Splits = Literal["own", "published"]
"""How class order and validation data follow from the seed."""


class ClassIncremental(IndexedStream):
    """A data set split in tasks of equally many classes.

    Classes come in an order that depends on the seed and are numbered by it: task ``t`` of
    ``k`` classes has labels ``t·k .. t·k + k − 1``.

    Args:
        arrays: The data.
        tasks: Number of tasks; must divide the number of classes.
        seed: Seed of class order, validation data and the order of samples.
        iid: Put all classes in one task, whatever ``tasks`` says.
        blurry: Fraction of each task's samples that are exchanged with other tasks; classes then
            appear before their task.
        by_domain: The classes of a domain follow each other, one domain after another; domains and
            classes within come in an order that depends on the seed. Each class must be of one
            domain.
        splits: Draw class order and validation data from generators of this package, ``"own"``, or
            as the runs in the paper's tables did, ``"published"``; those have seeds 0 to 4. The
            order of the training samples is always our own.

    The other arguments are those of :class:`~ocar.streams.arrays.ArrayStream`.

    Attributes:
        class_order: The data set's own label of each class, by order of appearance.
    """

    def __init__(
        self,
        arrays: Arrays | TaskArrays,
        *,
        tasks: int,
        batch_size: int = 10,
        validation: float = 0.05,
        seed: int = 0,
        iid: bool = False,
        blurry: float = 0.0,
        by_domain: bool = False,
        splits: Splits = "own",
    ) -> None:
        require_one_of("splits", splits, get_args(Splits))
        data = as_task(arrays)
        if data.y_train.is_floating_point():
            raise DataError(f"{data.name} has targets of {data.y_train.dtype}. Must have labels.")
        originals = torch.unique(data.y_train).cpu()
        classes = len(originals)
        if tasks < 1 or classes % tasks:
            raise ConfigError(
                f"Invalid {tasks=}. Must divide the {classes} classes of {data.name}."
            )
        draws = make_generator(seed, "class-order")
        if splits == "published":
            draws = torch.Generator().manual_seed(seed)
        order = torch.randperm(classes, generator=draws)
        if by_domain:
            order = order[_by_domain(arrays, originals[order], seed)]
        self.arrays = arrays
        self.iid = iid
        self.splits = splits
        self._draws = draws
        self.class_order: tuple[int, ...] = tuple(originals[order].tolist())
        n_tasks = 1 if iid else tasks
        parts = partial(_parts, data, originals=originals, order=order, tasks=n_tasks)
        super().__init__(
            parts("train"),
            test=parts("test") or [None] * n_tasks,
            own_validation=parts("validation") or [None] * n_tasks,
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

    def _shuffled(self, members: Tensor, task: int, held_out: int) -> Tensor:
        """The rows of a task in random order, the validation rows first."""
        if self.splits == "own":
            return super()._shuffled(members, task, held_out)
        labels = self._samples.y[members.to(self._samples.y.device)].cpu()
        # The published runs list the classes of a task as Python iterates over a set of them.
        mine = self.task_classes(task)
        originals = set(self.class_order[mine.start : mine.stop])
        ranks = [self.class_order.index(original) for original in originals]
        members = torch.cat([members[labels == rank] for rank in ranks])
        members = members[torch.randperm(len(members), generator=self._draws)]
        left, kept = members.tensor_split([len(members) - held_out])
        order = make_generator(self.seed, f"order/{task}")
        return torch.cat([kept, left[torch.randperm(len(left), generator=order)]])


def _parts(
    data: TaskArrays, part: str, *, originals: Tensor, order: Tensor, tasks: int
) -> list[Part]:
    """The samples of each task, labelled by appearance; none without data.

    ``originals`` are the data set's own labels, ascending, ``(classes,)``; ``order`` says which of
    them comes first, second, ...
    """
    source = data.source(part)
    if source is None:
        return []
    classes, device = len(originals), source.y.device
    labels = originals.to(device)
    place = torch.searchsorted(labels, source.y).clamp_(max=classes - 1)
    if not torch.equal(labels[place], source.y):
        raise DataError(f"{data.name} has {part} labels that its training data does not have.")
    y = torch.argsort(order).to(device)[place]
    samples = Samples([Source(x=source.x, y=y, view=source.view)])
    rows = [torch.nonzero(y // (classes // tasks) == t).flatten().cpu() for t in range(tasks)]
    for task, mine in enumerate(rows):
        if not len(mine):
            raise DataError(f"{data.name} has no {part} data for task {task}.")
    return [Part(samples, mine) for mine in rows]


def _by_domain(arrays: Arrays | TaskArrays, labels: Tensor, seed: int) -> Tensor:
    """The order that puts labels of one domain together, domains in random order."""
    domain = getattr(arrays, "domain_train", None)
    if not isinstance(arrays, Arrays) or domain is None:
        raise DataError(f"{arrays.name} has no domains.")
    y = arrays.y_train
    owners = [torch.unique(domain[y == label]).tolist() for label in labels]
    if any(len(owner) > 1 for owner in owners):
        raise DataError(f"{arrays.name} has classes of several domains. Each must be of one.")
    place = torch.randperm(len(arrays.domains), generator=make_generator(seed, "domain-order"))
    return torch.argsort(place[torch.tensor(owners).flatten()], stable=True)


class DomainIncremental(IndexedStream):
    """A data set of several domains, one domain a task, with the labels of the data set.

    For domains in arrays of their own see :class:`~ocar.streams.arrays.ArrayStream`.

    Args:
        arrays: The data.
        order: Names of the domains in the order of the stream; by default that of ``arrays``.

    The other arguments are those of :class:`~ocar.streams.arrays.ArrayStream`.

    Attributes:
        domains: Names of the domains in the order of the stream.
    """

    def __init__(
        self,
        arrays: Arrays,
        *,
        order: Sequence[str] | None = None,
        batch_size: int = 10,
        validation: float = 0.05,
        seed: int = 0,
        split_seed: int | None = None,
        iid: bool = False,
        blurry: float = 0.0,
    ) -> None:
        if arrays.domain_train is None or arrays.domain_test is None:
            raise DataError(f"{arrays.name} has no domains.")
        names = arrays.domains if order is None else tuple(order)
        if sorted(names) != sorted(arrays.domains):
            raise ConfigError(
                f"Invalid {order=}. Must be the domains of {arrays.name}, each once: "
                f"{', '.join(arrays.domains)}."
            )
        self.arrays = arrays
        self.domains = names
        self.iid = iid

        def parts(x: Tensor, y: Tensor, domain: Tensor, part: str) -> list[Part]:
            """The samples of each task, or of all in one."""
            samples, rows = Samples([Source(x=x, y=y)]), []
            for name in names:
                rows.append(torch.nonzero(domain == arrays.domains.index(name)).flatten().cpu())
                if not len(rows[-1]):
                    raise DataError(f"{arrays.name} has no {part} data in domain {name}.")
            return [Part(samples, mine) for mine in ([torch.cat(rows)] if iid else rows)]

        train = parts(arrays.x_train, arrays.y_train, arrays.domain_train, "training")
        super().__init__(
            train,
            test=parts(arrays.x_test, arrays.y_test, arrays.domain_test, "test"),
            own_validation=[None] * len(train),
            batch_size=batch_size,
            validation=validation,
            seed=seed,
            split_seed=split_seed,
            blurry=blurry,
            name=arrays.name,
        )

    @property
    def classes(self) -> int:
        """Number of classes in the whole stream."""
        return len(torch.unique(self.arrays.y_train))
