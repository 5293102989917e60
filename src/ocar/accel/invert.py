"""Inverses of many positive definite matrices, step by step together, on a GPU.

A library factorizes one matrix at a time in kernels that each want most of the device. Here every
kernel takes one step for all matrices: a matrix is cut into blocks, and two kernels take a column
of blocks out of all rows below it, by products. After as many steps as the largest matrix has
blocks along its side all are inverted. What cannot be shared out, the factorization of the block on
the diagonal, is done at the end of the step before, beside the products of the other blocks.

With M = L·Lᵀ, what is eliminated of M is replaced by L⁻¹, row by row: a step is one of the Cholesky
factorization and of the substitution into the identity at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

SIDE = 32
"""Rows of a block: one for each thread of a warp, which factorizes it."""

WARPS = 1
"""Groups of 32 threads that work on a block."""

PRECISION = "tf32x3"
"""Of a product: about as exact as single precision, and on tensor cores."""


class ManyInverses:
    """Inverts matrices that lie in one buffer.

    Args:
        starts: Where each matrix begins.
        sizes: How many rows it has.
        halves: Whether L⁻¹ is wanted, with M⁻¹ = L⁻ᵀL⁻¹, or M⁻¹ itself.
        kernels: Those of :mod:`ocar.accel.triton.invert`.
        device: Where the buffer is.
    """

    def __init__(
        self,
        starts: Sequence[int],
        sizes: Sequence[int],
        halves: Sequence[bool],
        *,
        kernels: ModuleType,
        device: torch.device,
    ) -> None:
        self._kernels = kernels
        counts = [-(-size // SIDE) for size in sizes]
        firsts = [sum(counts[:index]) for index in range(len(counts))]
        rows = [
            (start, size, row, column, first, matrix)
            for matrix, (start, size, first, count) in enumerate(
                zip(starts, sizes, firsts, counts, strict=True)
            )
            for row in range(count)
            for column in range(row + 1)
        ]
        # What a step is for comes first: all rows below a block, all matrices that reach so far.
        # Of a row the block on the diagonal comes last, since tasks are begun from the end.
        rows.sort(key=lambda task: (-task[2], task[2] == task[3]))
        strips = sorted((task for task in rows if task[3] == 0), key=lambda strip: -strip[1])
        heads = [task for task in rows if task[2] == 0]
        self._tasks, self._strips, self._heads = (
            torch.tensor(table, dtype=torch.int32, device=device) for table in (rows, strips, heads)
        )
        turns = range(max(counts))
        self._below = [sum(task[2] > turn for task in rows) for turn in turns]
        self._reach = [sum(count for count in counts if count > turn) for turn in turns]
        self._halves = torch.tensor(halves, dtype=torch.int32, device=device)
        self._panels, self._roots = torch.zeros(2, sum(counts) * SIDE**2, device=device).unbind()
        self._bad = torch.zeros(len(sizes), dtype=torch.int32, device=device)

    def invert(self, values: Tensor, out: Tensor, *, unless: Tensor) -> Tensor:
        """Invert all matrices, without waiting for the device.

        Args:
            values: They; only what is on and below the diagonals is read. Overwritten.
            out: Where the inverses go, unless any of them failed. What is above the diagonal of an
                L⁻¹ is left as it is.
            unless: For each matrix a number of int; if any is not 0 nothing is written to ``out``.

        Returns:
            For each matrix a number of int, 0 if it was inverted.
        """
        kernels, panels, roots, bad = self._kernels, self._panels, self._roots, self._bad
        how = {"SIDE": SIDE, "PRECISION": PRECISION, "num_warps": WARPS}
        kernels.begin[(len(self._heads),)](values, roots, bad, self._heads, **how)
        for turn, (below, reach) in enumerate(zip(self._below, self._reach, strict=True)):
            kernels.divide[(reach,)](values, panels, roots, self._strips, turn, **how)
            if below:
                kernels.subtract[(below,)](
                    values, panels, roots, bad, self._tasks, turn, below, **how
                )
        kernels.finish[(len(self._tasks),)](
            *(values, roots, bad, unless, self._tasks, self._halves, out, len(bad)),
            MATRICES=1 << (len(bad) - 1).bit_length(),
            **how,
        )
        return bad
