"""What a stream is: batches of one task after another, held-out data, a place to go on from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ocar.errors import CheckpointError, ConfigError

Labelled = tuple[Tensor, Tensor]
"""Samples ``(n, ...)`` with their labels ``(n,)`` or regression targets ``(n, outputs)``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamBatch:
    """One mini-batch as it arrives."""

    x: Tensor
    """Samples ``(n, ...)``; images are ``(n, channels, height, width)``, uint8."""

    y: Tensor
    """Labels ``(n,)``, int64, or regression targets ``(n, outputs)``, floating point."""

    task: int
    """Which task it is from; for evaluation, learners are not told."""

    index: int
    """Its place in the whole stream, from 0."""

    complete: bool
    """False for a task's last batch when it is short: it is remembered, not trained on."""

    last: bool
    """Whether it is the last one of its task."""


class TaskStream(Protocol):
    """What every stream is; anything that has these can be learned from and evaluated on.

    Iterating goes on from where the stream stands and moves it; a batch counts as seen once it
    is given. Where it stands is all of its state.
    """

    @property
    def tasks(self) -> int:
        """Number of tasks."""

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches that are left."""

    def training(self, task: int, /) -> Labelled:
        """All that one task gives to learn from, in the order in which it is given."""

    def validation(self, task: int, /) -> Labelled:
        """Validation samples of one task; there may be none."""

    def test(self, task: int, /) -> Labelled:
        """Test samples of one task; there may be none."""

    def state_dict(self) -> dict[str, int]:
        """Where the stream stands."""

    def load_state_dict(self, state: Mapping[str, int], /) -> None:
        """Go to where a stream made with the same arguments stood."""


def read_position(state: Mapping[str, int], *, length: int | None = None) -> int:
    """The position in the state of a stream.

    Args:
        state: What ``state_dict`` gave.
        length: Batches in the stream, where that is known.

    Raises:
        CheckpointError: The state is not one of a stream of this length.
    """
    if set(state) != {"position"}:
        raise CheckpointError(f"Invalid stream state with {sorted(state)}. Must be position.")
    position = state["position"]
    valid = isinstance(position, int) and position >= 0 and (length is None or position <= length)
    if not valid:
        end = "" if length is None else f"..{length}"
        raise CheckpointError(f"Invalid stream {position=}. Must be in 0{end or ' or more'}.")
    return position


def empty_like(x: Tensor, y: Tensor) -> Labelled:
    """No samples at all, of the shapes and types of some."""
    return x[:0], y[:0]


def check_task(task: int, tasks: int) -> None:
    """Refuse a task that is not there."""
    if not 0 <= task < tasks:
        raise ConfigError(f"Invalid {task=}. Must be in 0..{tasks - 1}.")


def concatenate(parts: list[Labelled]) -> Labelled:
    """Several pieces of labelled samples in one."""
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
