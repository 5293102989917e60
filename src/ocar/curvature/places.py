"""The dimension of a tensor that holds the samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Place:
    """The dimension that holds the samples."""

    dim: int
    inner: bool = False  #: Whether the sample varies fastest where a sample has several rows.

    def first(self, t: Tensor, samples: int, *, before: int = 0) -> Tensor:
        """The samples in the first dimension after ``before`` others; rows keep their dimension."""
        dim = before + self.dim
        if t.shape[dim] == samples:
            return t.movedim(dim, before) if self.dim else t
        t = t.unflatten(dim, (-1, samples) if self.inner else (samples, -1))
        return t.movedim(dim + self.inner, before)


def places(shape: Sequence[int], samples: int, dims: Iterable[int]) -> list[Place]:
    """All places in some dimensions; those with one row a sample come first."""
    dims = [dim for dim in dims if shape[dim] and shape[dim] % samples == 0]
    exact = [Place(dim) for dim in dims if shape[dim] == samples]
    inner = (False, True)
    return exact + [Place(d, i) for d in dims if shape[d] != samples for i in inner]
