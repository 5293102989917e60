"""The base of streams: the batches of one task after another, held-out data, and a position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ocar.errors import CheckpointError, ConfigError
from ocar.structure import cat

Labelled = tuple[Any, Tensor]
"""Samples ``(n, ...)`` with their labels ``(n,)`` or regression targets ``(n, outputs)``.

The samples are a tensor, or for a model with several inputs a
:class:`~ocar.structure.Structure`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamBatch:
    """One mini-batch of a stream."""

    x: Any  #: Samples ``(n, ...)``; images are ``(n, channels, height, width)``, uint8.
    y: Tensor  #: Labels ``(n,)``, int64, or regression targets ``(n, outputs)``, floating point.
    task: int  #: Its task, for evaluation; learners do not see it.
    index: int  #: Its index in the whole stream, from 0.
    complete: bool  #: False if it is short: it is then remembered, not trained on.
    last: bool  #: Whether it is the last one of its task.


class TaskStream(Protocol):
    """A stream; anything with these methods can be learned from and evaluated on.

    Iterating continues from the stream's position and moves it; a batch counts as seen once it is
    given. The position is all of its state.
    """

    @property
    def tasks(self) -> int:
        """Number of tasks."""

    def __iter__(self) -> Iterator[StreamBatch]:
        """The remaining batches."""

    def training(self, task: int, /) -> Labelled:
        """All training data of one task, in the order of its batches."""

    def validation(self, task: int, /) -> Labelled:
        """Validation samples of one task, possibly none."""

    def test(self, task: int, /) -> Labelled:
        """Test samples of one task, possibly none."""

    def state_dict(self) -> dict[str, int]:
        """The position."""

    def load_state_dict(self, state: Mapping[str, int], /) -> None:
        """Go to the position of a stream made with the same arguments."""


class PositionedStream(ABC):
    """The common part of our streams."""

    tasks: int  #: Number of tasks.
    position: int = 0  #: Index of the next batch.

    def reset(self) -> None:
        """Go back to the first batch."""
        self.load_state_dict({"position": 0})

    def validation(self, task: int) -> Labelled:
        """Validation samples ``(n, ...)`` and labels of one task; n may be 0."""
        return self._held_out("validation", check_task(task, self.tasks))

    def test(self, task: int) -> Labelled:
        """Test samples ``(n, ...)`` and labels of one task; n may be 0."""
        return self._held_out("test", check_task(task, self.tasks))

    def state_dict(self) -> dict[str, int]:
        """The position; the rest follows from the arguments."""
        return {"position": self.position}

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the position of another stream made with the same arguments."""

    @abstractmethod
    def _held_out(self, part: str, task: int) -> Labelled: ...


def read_position(state: Mapping[str, int], *, length: int | None = None) -> int:
    """The position in the state of a stream of ``length`` batches, if that is known."""
    if set(state) != {"position"}:
        raise CheckpointError(f"Invalid stream state with {sorted(state)}. Must be position.")
    position = state["position"]
    if not isinstance(position, int) or position < 0 or (length is not None and position > length):
        end = " or more" if length is None else f"..{length}"
        raise CheckpointError(f"Invalid stream {position=}. Must be in 0{end}.")
    return position


def check_task(task: int, tasks: int) -> int:
    """The task; raise if there is no such task."""
    if not 0 <= task < tasks:
        raise ConfigError(f"Invalid {task=}. Must be in 0..{tasks - 1}.")
    return task


def concatenate(parts: list[Labelled]) -> Labelled:
    """Concatenate pieces of labelled samples."""
    return cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
