"""Stretches of a stream, for methods that treat earlier stretches differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["boundary", "labels", "batches"]


class Stretches:
    """Counts the stretches of a stream.

    Args:
        kind: Where a stretch ends: at a ``"boundary"``, every few ``"batches"``, or with new
            ``"labels"``.
        quiet: Batches without a new label before a new label begins a stretch.
        length: Batches of a stretch.

    Attributes:
        ended: Stretches that have ended.
        batches: Batches that have begun.
        at_boundary: Whether a task has ended since the last batch.
    """

    def __init__(self, kind: Kind, *, quiet: int, length: int) -> None:
        self.kind = kind
        self.quiet = quiet
        self.length = length
        self.ended = 0
        self._units: set[int] = set()
        self.batches = 0
        self._since_new = 0
        self.at_boundary = False

    @property
    def units(self) -> tuple[int, ...]:
        """The units that have occurred."""
        return tuple(sorted(self._units))

    def boundary(self) -> None:
        """A task has ended."""
        self.at_boundary = True

    def ends_before(self, units: Sequence[int]) -> bool:
        """Whether a stretch has ended before a batch that is about to be learned."""
        if not self._units:
            return False
        if self.kind == "boundary":
            return self.at_boundary
        if self.kind == "batches":
            return self.batches % self.length == 0
        return not self._units.issuperset(units) and self._since_new >= self.quiet

    def begin(self, units: Sequence[int]) -> None:
        """Count a batch that is about to be learned."""
        self.ended += self.ends_before(units)
        self.at_boundary = False
        self.batches += 1
        self._since_new = self._since_new + 1 if self._units.issuperset(units) else 0
        self._units.update(units)

    def state_dict(self) -> dict[str, Tensor]:
        """The units and the counters."""
        counters = (self.ended, self.batches, self._since_new, self.at_boundary)
        return {
            "units": torch.tensor(self.units, dtype=torch.int64),
            "counters": torch.tensor(counters, dtype=torch.int64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._units = set(state["units"].tolist())
        self.ended, self.batches, self._since_new, boundary = state["counters"].tolist()
        self.at_boundary = bool(boundary)
