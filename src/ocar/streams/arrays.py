"""Streams over a user's own arrays, one data set a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ocar.datasets.arrays import Arrays
from ocar.errors import ConfigError, DataError
from ocar.streams.base import Labelled
from ocar.streams.indexed import IndexedStream, Part, Samples, Source, View
from ocar.structure import TYPES, Inputs, as_samples, named_part, parts_of

_PARTS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskArrays:
    """The data of one task, as tensors, arrays or anything that ``torch.as_tensor`` takes.

    Samples may be tuples or dictionaries of them, for a model with several inputs.
    """

    name: str = "task"  #: Name in messages.
    x_train: Any  #: Samples ``(n, ...)``.
    y_train: Any  #: Integer labels ``(n,)``, or floating-point targets ``(n, outputs)``.
    x_test: Any = None  #: Test samples.
    y_test: Any = None  #: Their labels or targets.
    x_validation: Any = None  #: Validation samples; by default split off the training data.
    y_validation: Any = None  #: Their labels or targets.
    view: View | None = None  #: Applied to all samples: ``(n, ...)`` to the same shape and type.

    def __post_init__(self) -> None:
        for part in _PARTS:
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if (x is None) != (y is None):
                raise DataError(f"{self.name}: x_{part} and y_{part} must both be given, or none.")
            if x is not None:
                x, y = _checked(as_samples(x), torch.as_tensor(y), f"{self.name}, {part}")
                object.__setattr__(self, f"x_{part}", x)
                object.__setattr__(self, f"y_{part}", y)

    def source(self, part: str) -> Source | None:
        """Samples of ``"train"``, ``"validation"`` or ``"test"``; None without any."""
        x = getattr(self, f"x_{part}")
        return None if x is None else Source(x=x, y=getattr(self, f"y_{part}"), view=self.view)

    def to(self, device: torch.device | str) -> TaskArrays:
        """The same with samples and targets on ``device``; labels stay on the host."""
        moved = {}
        for name in (f"{axis}_{part}" for axis in "xy" for part in _PARTS):
            tensor = getattr(self, name)
            if tensor is not None and (name.startswith("x") or tensor.is_floating_point()):
                moved[name] = tensor.to(device)
        return replace(self, **moved)


def as_task(arrays: Arrays | TaskArrays) -> TaskArrays:
    """A data set as the data of one task."""
    if isinstance(arrays, TaskArrays):
        return arrays
    parts = [f"{axis}_{part}" for axis in "xy" for part in _PARTS]
    return TaskArrays(**{name: getattr(arrays, name) for name in ("name", *parts)})


class ArrayStream(IndexedStream):
    """A stream over the user's own arrays, one task after another, with their labels.

    Args:
        tasks: The data of each task.
        batch_size: Samples in a complete batch.
        validation: Fraction of a task's training data that is kept for validation, unless the task
            brings validation data.
        seed: Seed of the order of samples and, without ``split_seed``, of the validation data.
        split_seed: Seed of the validation data, to have the same for every ``seed``.
        iid: Put all tasks' data in one task.
        blurry: Fraction of each task's samples that are exchanged with other tasks.
        shuffle: Whether a task's samples come in random order, or as in the arrays.
    """

    def __init__(
        self,
        tasks: Sequence[Arrays | TaskArrays],
        *,
        batch_size: int = 10,
        validation: float = 0.05,
        seed: int = 0,
        split_seed: int | None = None,
        iid: bool = False,
        blurry: float = 0.0,
        shuffle: bool = True,
    ) -> None:
        if not tasks:
            raise ConfigError("A stream must have at least one task; given none.")
        given = [as_task(task) for task in tasks]
        self.names: tuple[str, ...] = tuple(task.name for task in given)
        self.iid = iid
        train, own_validation, test = (_parts(given, part, iid=iid) for part in _PARTS)
        super().__init__(
            [part for part in train if part is not None],  # every task has training data
            test=test,
            own_validation=own_validation,
            batch_size=batch_size,
            validation=validation,
            seed=seed,
            split_seed=split_seed,
            blurry=blurry,
            shuffle=shuffle,
            name=", ".join(dict.fromkeys(self.names)),
        )


def _parts(tasks: Sequence[TaskArrays], part: str, *, iid: bool) -> list[Part | None]:
    """The data of each task, or of all in one; None without any."""
    sources = [task.source(part) for task in tasks]
    found = [source for source in sources if source is not None]
    if not found:
        return [None] if iid else [None] * len(tasks)
    if iid and len(found) < len(tasks):
        missing = sources.index(None)
        raise ConfigError(f"Task {missing} has no {part} data, others have: no task of all.")
    samples = Samples(found, like=tasks[0].source("train"))
    rows = (samples.rows_of(place) for place in range(len(found)))
    if iid:
        return [Part(samples, torch.cat(list(rows)))]
    return [None if source is None else Part(samples, next(rows)) for source in sources]


def _checked(x: Inputs, y: Tensor, name: str) -> Labelled:
    """Samples and labels that fit together, labels as int64."""
    for part, tensor in parts_of(x).items():
        short = tensor.dim() < (1 if part else 2) or len(tensor) == 0
        if short or tensor.dtype not in TYPES:
            raise DataError(
                f"{name}: {named_part(part)} is {tensor.dtype} of shape {tuple(tensor.shape)}. "
                "Must be uint8, bool, integer or floating point (n, ...) with n > 0."
            )
    if y.shape[:1] != (len(x),):
        raise DataError(f"{name}: y has shape {tuple(y.shape)}. Must start with {len(x)}, as x.")
    given = f"{name}: y is {y.dtype} of shape {tuple(y.shape)}."
    if y.is_floating_point():
        if y.dim() != 2:
            raise DataError(f"{given} Regression targets must be (n, outputs).")
        return x, y
    if y.dim() != 1 or y.is_complex() or y.dtype == torch.bool:
        raise DataError(f"{given} Labels must be integers (n,).")
    return x, y.long()
