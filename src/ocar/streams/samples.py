"""Samples that are gathered when they are asked for, from one or more arrays.

A whole data set may be larger than memory (memory-mapped) or shown in several views (rotated,
permuted); so nothing is joined or transformed before a batch needs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ocar.errors import DataError
from ocar.streams.base import Labelled

View = Callable[[Tensor], Tensor]
"""A fixed change of the samples of a domain, ``(n, ...)`` to the same shape and type."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Arrays that samples come from."""

    x: Tensor
    """Samples ``(n, ...)``."""

    y: Tensor
    """Labels ``(n,)`` or targets ``(n, outputs)``."""

    view: View | None = None
    """How the samples are shown; as they are if not given."""

    def take(self, rows: Tensor) -> Tensor:
        """The samples in some rows, ``(len(rows), ...)``."""
        x = self.x[rows.to(self.x.device, non_blocking=True)]
        return x if self.view is None else self.view(x)


class Samples:
    """The rows of several sources, numbered through: those of the first, then the second, ...

    Args:
        sources: At least one; all of one sample shape and type.

    Attributes:
        y: The labels or targets of all rows.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        first = sources[0]
        for source in sources:
            for part, mine, wanted in (("x", source.x, first.x), ("y", source.y, first.y)):
                if (mine.shape[1:], mine.dtype) != (wanted.shape[1:], wanted.dtype):
                    raise DataError(
                        f"Invalid {part} of {tuple(mine.shape[1:])} a sample, {mine.dtype}, beside "
                        f"{tuple(wanted.shape[1:])}, {wanted.dtype}. Must be the same in all tasks."
                    )
        self.sources = tuple(sources)
        self.y = first.y if len(sources) == 1 else torch.cat([source.y for source in sources])
        self._ends = torch.tensor(list(itertools.accumulate(len(s.y) for s in sources)))

    def __len__(self) -> int:
        return len(self.y)

    def rows_of(self, source: int) -> Tensor:
        """The rows of one source, ``(n,)`` int64 on the host."""
        start = int(self._ends[source - 1]) if source else 0
        return torch.arange(start, int(self._ends[source]))

    def take(self, rows: Tensor) -> Labelled:
        """Samples and labels in some rows.

        Args:
            rows: ``(n,)`` int64 on the host.

        Returns:
            Samples ``(n, ...)`` and labels ``(n,)`` or targets ``(n, outputs)``.
        """
        y = self.y[rows.to(self.y.device, non_blocking=True)]
        if len(self.sources) == 1:
            return self.sources[0].take(rows), y
        owner = torch.bucketize(rows, self._ends, right=True)
        present = owner.unique().tolist()
        if len(present) == 1:
            return self._from(present[0], rows), y
        first = self.sources[0].x
        x = torch.empty((len(rows), *first.shape[1:]), dtype=first.dtype, device=first.device)
        for source in present:
            mine = torch.nonzero(owner == source).flatten()
            x[mine.to(x.device)] = self._from(source, rows[mine])
        return x, y

    def _from(self, source: int, rows: Tensor) -> Tensor:
        start = int(self._ends[source - 1]) if source else 0
        return self.sources[source].take(rows - start)
