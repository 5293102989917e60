"""What tensors were before some steps, on a GPU, by kernels that take all of them at once.

A model has a hundred tensors, most of them small. Where they lie is written into a table once; a
kernel then copies all of them, another adds them up, and a third makes them what they were, or ends
at once if nothing is to be changed. It needs Triton, see :mod:`ocar.accel.compiled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ocar.accel.compiled import compiles, kernels
from ocar.accel.layout import lies_by_pixel
from ocar.accel.streams import is_capturing
from ocar.guard.kept import Kept

_PIECE = 2048  # numbers that a program takes at a time
_MOST = 2**13  # pieces that one program can add up
_PROGRAMS = 264  # that share what is to be put back, if anything is
_ALIGNMENT = 16  # bytes
_BATCH = 2**16  # numbers of a batch that one program looks through


class Tables:
    """Where tensors lie, known since they were kept for the first time.

    Args:
        device: Where they are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # None is forgotten: graphs use them.
        self._tables: dict[tuple[tuple[int, int], ...], _Table | None] = {}

    def keep(self, weights: Sequence[Tensor], others: Sequence[Tensor]) -> Kept | TableKept:
        """A copy of some tensors, by kernels of our own where that can be.

        Args:
            weights: What the steps change and may be shortened.
            others: What else they change and is to be as before if they are taken back.
        """
        pairs = [(t.detach(), index) for index, ts in enumerate((weights, others)) for t in ts]
        key = tuple((t.data_ptr(), 2 * t.numel() + index) for t, index in pairs)
        if key not in self._tables and not is_capturing(self._device):
            self._tables[key] = self._make(pairs)
        table = self._tables.get(key)
        return Kept(weights, others) if table is None else TableKept(table)

    def _make(self, pairs: Sequence[tuple[Tensor, int]]) -> _Table | None:
        if not all(_is_known(t) for t, _ in pairs):
            return None
        compiled = kernels("ocar.accel.triton.snapshot")
        if compiled is None:
            return None
        table = _Table(pairs, compiled, self._device)
        if not 0 < len(table.rows) <= _MOST or not compiles(table.rehearse, "What the guard keeps"):
            return None
        return table


def remembers(x: Tensor, accepted: Tensor, counts: Tensor) -> Tensor | None:
    """Whether a batch is worth a place in the memory, by one kernel if there is one for it.

    Args:
        x: Its samples.
        accepted: Whether it was not skipped, a scalar.
        counts: Of batches by kind; if it is copies of one sample that is counted.
    """
    plain = x.is_contiguous() and x.dtype in (torch.uint8, torch.float32, torch.float64)
    small = plain and x.is_cuda and 0 < x.numel() <= _BATCH
    compiled = kernels("ocar.accel.triton.snapshot") if small else None
    if compiled is None:
        return None
    remembered = torch.empty_like(accepted)
    with torch.cuda.device_of(x):
        compiled.look_for_copies[(1,)](
            *(x, accepted, counts, remembered, x.numel() // len(x), x.numel()),
            BLOCK=_PIECE,
            num_warps=8,
        )
    return remembered


class _Table:
    """Where some tensors lie.

    Attributes:
        kernels: What takes all of them at once.
        rows: Of the table.
        total: Numbers of all tensors.
        how: What the kernels are compiled for.
        whole: A share of 1.
    """

    def __init__(
        self, pairs: Sequence[tuple[Tensor, int]], compiled: ModuleType, device: torch.device
    ) -> None:
        self.kernels = compiled
        rows, self.total = [], 0
        for tensor, index in pairs:
            for first in range(0, tensor.numel(), _PIECE):
                address = tensor.data_ptr() + first * tensor.element_size()
                length = min(_PIECE, tensor.numel() - first)
                rows.append((address, self.total + first, length, int(index == 0)))
            self.total += -(-tensor.numel() // 4) * 4  # so that all begin where four can be read
        aligned = all(t.data_ptr() % _ALIGNMENT == 0 for t, _ in pairs)
        self.rows = torch.tensor(rows, dtype=torch.int64).to(device)
        self.how: dict[str, Any] = {"BLOCK": _PIECE, "ALIGNED": aligned}
        self.whole = torch.ones((), device=device)

    def rehearse(self) -> None:
        """Have the kernels compiled; nothing is changed."""
        yes = torch.ones((), dtype=torch.bool, device=self.rows.device)
        counts = torch.zeros(5, dtype=torch.int64, device=self.rows.device)
        for divergences in (None, self.whole.new_zeros(1)):
            kept = TableKept(self)
            given = kept.sum(), self.whole, yes, divergences, self.whole.clone()
            kept.settle_(yes, kept.decide(*given, counts, self.whole.clone(), yes.clone()))
            kept.settle_(yes)


class TableKept:
    """A copy of the tensors of a table; as :class:`~ocar.guard.kept.Kept`.

    Args:
        table: Where they lie.
    """

    def __init__(self, table: _Table) -> None:
        self._table = table
        self._kept = table.whole.new_empty(table.total)
        with torch.cuda.device_of(self._kept):
            table.kernels.keep[(len(table.rows),)](table.rows, self._kept, **table.how)

    def sum(self) -> Tensor:
        """Sums of the pieces as they are now: finite only if all of them are."""
        table = self._table
        sums = table.whole.new_empty(len(table.rows))
        with torch.cuda.device_of(sums):
            table.kernels.sum_up[(len(table.rows),)](table.rows, sums, **table.how)
        return sums

    def decide(
        self,
        sums: Tensor,
        loss: Tensor,
        trusted: Tensor,
        divergences: Tensor | None,
        bound: Tensor | None,
        counts: Tensor,
        largest: Tensor,
        accepted: Tensor,
    ) -> Tensor:
        """Decide what becomes of a batch, and count it.

        Args:
            sums: What :meth:`sum` gave.
            loss: The last loss, a scalar.
            trusted: Whether the inputs are of a sane size.
            divergences: How far the predictions on each replayed sample have changed, if measured.
            bound: How far they may in the mean.
            counts: Of batches by kind; changed in place.
            largest: The largest mean so far; changed in place.
            accepted: Becomes whether the batch is accepted.

        Returns:
            Which part of the way the weights go.
        """
        share = torch.empty_like(self._table.whole)
        samples = 0 if divergences is None or bound is None else len(divergences)
        limit = largest if bound is None else bound  # of what is not there nothing is read
        with torch.cuda.device_of(sums):
            self._table.kernels.decide[(1,)](
                *(sums, loss, trusted, sums if divergences is None else divergences, limit),
                *(counts, largest, accepted, share, len(sums), samples),
                PIECES=1 << (len(sums) - 1).bit_length(),
                SAMPLES=0 if samples == 0 else max(16, 1 << (samples - 1).bit_length()),
            )
        return share

    def settle_(self, accepted: Tensor, share: Tensor | None = None) -> None:
        """Make the tensors what they were unless accepted, and go only part of the way.

        Args:
            accepted: Whether they may stay, a scalar.
            share: Which part of the way the weights go, a scalar in [0, 1]; 1, or None, is all of
                it.
        """
        table = self._table
        part = table.whole if share is None else share
        with torch.cuda.device_of(part):
            table.kernels.put_back[(min(_PROGRAMS, len(table.rows)),)](
                *(table.rows, self._kept, accepted, part, len(table.rows)), **table.how
            )


def _is_known(t: Tensor) -> bool:
    """Whether there are kernels for a tensor: all of its numbers lie together."""
    dense = t.is_contiguous() or lies_by_pixel(t)
    return t.is_cuda and t.dtype == torch.float32 and dense
