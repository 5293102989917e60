"""What tensors were before some steps, to go back to, wholly or in part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ocar.accel.layout import in_memory, lies_by_pixel


class Kept:
    """A copy of some tensors, in as few pieces as there are types of numbers.

    Args:
        weights: What the steps change and may be shortened.
        others: What else they change and is to be as before if they are taken back.
    """

    def __init__(self, weights: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        self._parts = [
            (same, _flat(same), shortens)
            for tensors, shortens in ((weights, True), (others, False))
            for same in _by_dtype(tensors)
        ]
        self._seen: list[Tensor] | None = None

    def sum(self) -> Tensor:
        """The sum of the tensors as they are now: finite only if all of them are."""
        whole = [tensor for same, *_ in self._parts for tensor in same]
        if not whole[0].is_cpu:  # there a kernel more costs more than a copy
            whole = self._seen = [_flat(same) for same, *_ in self._parts]
        wide = (torch.promote_types(t.dtype, torch.float32) for t in whole)
        sums = [t.sum(dtype=dtype) for t, dtype in zip(whole, wide, strict=True)]
        return torch.stack(sums).sum(dtype=torch.float64)

    @torch.no_grad()
    def settle_(self, accepted: Tensor, share: Tensor | None = None) -> None:
        """Make the tensors what they were unless accepted, and go only part of the way.

        Args:
            accepted: Whether they may stay, a scalar.
            share: Which part of the way the weights go, a scalar in [0, 1]; 1, or None, is all of
                it.
        """
        seen = self._seen or [_flat(same) for same, *_ in self._parts]
        for (same, before, shortens), after in zip(self._parts, seen, strict=True):
            kept = torch.where(accepted, after, before)
            if shortens and share is not None:  # a share of 1 gives the same to the bit
                kept = torch.lerp(before, kept, share.to(before.dtype))
            pieces = kept.split([t.numel() for t in same])
            views = [_shaped(piece, t) for piece, t in zip(pieces, same, strict=True)]
            torch._foreach_copy_([t.detach() for t in same], views)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers in a row, those of each tensor in the order that they have in memory."""
    return torch.cat([in_memory(t.detach()).reshape(-1) for t in tensors])


def _shaped(piece: Tensor, like: Tensor) -> Tensor:
    """A tensor's part of :func:`_flat` in its shape."""
    if not lies_by_pixel(like):
        return piece.view_as(like)
    return piece.view(in_memory(like).shape).movedim(-1, 1)


def _by_dtype(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        yield [t.detach() for t in tensors if t.dtype == dtype]
