"""Kronecker factors on a GPU: one kernel takes one step for all layers.

A library factorises one matrix at a time, in kernels that each want most of the device, and takes
a thousand launches for the factors of a ResNet. Here every kernel takes one step for all matrices.

Of A the inverse of the Cholesky factor is kept, A⁻¹ = RᵀR with R triangular; of G the inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ocar.accel import kronecker
from ocar.accel.buffer import FactorBuffer, Pair
from ocar.accel.kronecker import Pairs, invert, mix_and_damp, precondition
from ocar.accel.operation import has_triton, launch
from ocar.accel.rows import Rows

LARGEST = 2048
"""Rows of a factor up to which our kernels are faster than a library."""

SIDE = 32
"""Rows of a block of an inverse: one for each thread of the warp that factorises it."""

PRECISION = "tf32x3"
"""Of products: nearly that of float32, on tensor cores."""

_CHUNK = 4096  # numbers of a factor that one program averages
_ROWS, _COLUMNS, _TERMS = 32, 64, 32  # of a tile of a product, and the terms it adds at a time


@dataclass(frozen=True, eq=False)
class _Matrix:
    """One square matrix of the buffer."""

    start: int
    size: int
    statistic: int
    partner: int
    is_a: bool


class _Plan:
    """Tables for the kernels; they cannot be made while a graph is recorded.

    Args:
        buffer: The factors.
        pairs: The layers, all of them small enough.
    """

    def __init__(self, buffer: FactorBuffer, pairs: Pairs) -> None:
        self._device = buffer.averages.device
        self._pairs = pairs
        self._starts = {p.layer: tuple(buffer.start(name) for name in p.names) for p in pairs}
        self.matrices: list[_Matrix] = []
        for pair in pairs:
            first = len(self.matrices)
            for group in range(pair.groups):
                for is_a, name in zip((True, False), pair.names, strict=True):
                    size = pair.d_in if is_a else pair.d_out
                    start = buffer.start(name) + group * size**2
                    partner = first + 2 * group + int(is_a)
                    self.matrices.append(_Matrix(start, size, buffer.index(name), partner, is_a))
        self.starts, self.sizes, self.statistics, self.partners, self.halves = (
            self._table([getattr(matrix, field) for matrix in self.matrices])
            for field in ("start", "size", "statistic", "partner", "is_a")
        )
        self.largest = max(matrix.size for matrix in self.matrices)
        self.traces = torch.zeros(2, len(self.matrices), device=self._device)
        # One number for each matrix, and one for all matrices that are too large for the kernels.
        self.bad = torch.zeros(len(self.matrices) + 1, dtype=torch.int32, device=self._device)
        self._make_blocks()

    def _table(self, rows: Sequence[Any]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=self._device)

    @cached_property
    def chunks(self) -> Tensor:
        """Pieces of the matrices to average: number of the matrix, first number."""
        return self._table(
            [
                (number, first)
                for number, matrix in enumerate(self.matrices)
                for first in range(0, matrix.size**2, _CHUNK)
            ]
        )

    def _make_blocks(self) -> None:
        """Blocks on and below the diagonals of the matrices, in the order that steps need them."""
        counts = [-(-matrix.size // SIDE) for matrix in self.matrices]
        firsts = [sum(counts[:index]) for index in range(len(counts))]
        blocks = [
            (matrix.start, matrix.size, row, column, first, number)
            for number, (matrix, first, count) in enumerate(
                zip(self.matrices, firsts, counts, strict=True)
            )
            for row in range(count)
            for column in range(row + 1)
        ]
        # A step takes all rows below a block of all matrices that reach so far: these come first.
        # Programs start from the end, and the block on the diagonal takes longest.
        blocks.sort(key=lambda block: (-block[2], block[2] == block[3]))
        strips = sorted((block for block in blocks if block[3] == 0), key=lambda strip: -strip[1])
        self.blocks, self.strips = self._table(blocks), self._table(strips)
        self.corners = self._table([block for block in blocks if block[2] == 0])
        steps = range(max(counts))
        self.below = [sum(block[2] > step for block in blocks) for step in steps]
        self.reach = [sum(count for count in counts if count > step) for step in steps]
        self.panels, self.roots = torch.zeros(
            2, sum(counts) * SIDE**2, device=self._device
        ).unbind()

    @cached_property
    def tiles(self) -> list[Tensor]:
        """Tiles of the three products of :func:`_precondition`, the longest sums first."""
        tables: tuple[list[list[int]], ...] = ([], [], [])
        at = 0
        for pair in self._pairs:
            rows, columns = pair.d_out, pair.d_in
            for group in range(pair.groups):
                start_a, start_g = self._starts[pair.layer]
                root, inverse = start_a + group * columns**2, start_g + group * rows**2
                for row in range(-(-rows // _ROWS)):
                    for column in range(-(-columns // _COLUMNS)):
                        first, last = column * _COLUMNS, min(columns, (column + 1) * _COLUMNS)
                        wide, high = [rows, columns, columns, row, column], [rows, columns, rows]
                        # R is triangular: the sums leave out its zeros.
                        tables[0].append([at, root, at, *wide, 0, -(-last // _TERMS)])
                        tables[1].append(
                            [inverse, at, at, *high, row, column, 0, -(-rows // _TERMS)]
                        )
                        tables[2].append(
                            [at, root, at, *wide, first // _TERMS, -(-columns // _TERMS)]
                        )
                at += rows * columns
        for table in tables:
            table.sort(key=lambda tile: tile[8] - tile[9])
        return [self._table(table) for table in tables]


def _plan(buffer: FactorBuffer, pairs: Pairs) -> _Plan:
    plans: dict[Pairs, _Plan] = buffer.derived.setdefault("plans", {})
    if pairs not in plans:
        plans[pairs] = _Plan(buffer, pairs)
    return plans[pairs]


def _is_small(pair: Pair) -> bool:
    return max(pair.d_in, pair.d_out) <= LARGEST


def _split(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """The layers for the kernels, and those that are too large for them."""
    return tuple(p for p in pairs if _is_small(p)), tuple(p for p in pairs if not _is_small(p))


def _fits(buffer: FactorBuffer, pairs: Pairs, *others: object) -> bool:
    single = buffer.averages.dtype == torch.float32
    return single and any(map(_is_small, pairs)) and has_triton(buffer.averages)


@mix_and_damp.implementation("triton", when=_fits)
def _mix_and_damp(
    buffer: FactorBuffer, pairs: Pairs, rates: Tensor, dims: Tensor, damping: Tensor | float
) -> Tensor:
    from ocar.accel.triton import average as kernels

    small, large = _split(pairs)
    plan = _plan(buffer, small)
    values, estimates, count = buffer.averages, buffer.estimates, len(plan.matrices)
    launch(
        kernels.trace,
        (count,),
        *(values, estimates, plan.starts, plan.sizes, plan.traces, count),
        BLOCK=1 << (plan.largest - 1).bit_length(),
    )
    ok = plan.traces[1].sum().isfinite()  # the diagonals bound the rest
    if large:
        ok = ok & kronecker.are_finite(buffer, large)
    launch(
        kernels.mix,
        (len(plan.chunks),),
        *(values, estimates, plan.starts, plan.sizes, plan.traces, plan.statistics),
        *(plan.partners, rates, dims, torch.as_tensor(damping).to(rates), ok, plan.chunks, count),
        BLOCK=_CHUNK,
    )
    kronecker.take_estimates(buffer, large, rates, dims, damping, ok)
    return ok


@invert.implementation("triton", when=_fits)
def _invert(buffer: FactorBuffer, pairs: Pairs) -> Tensor:
    from ocar.accel.triton import invert as kernels

    small, large = _split(pairs)
    plan, values = _plan(buffer, small), buffer.estimates
    count = len(plan.matrices)
    if large:
        found, others = kronecker.find_inverses(buffer, large)
        plan.bad[count].copy_(others)
    options = {"SIDE": SIDE, "PRECISION": PRECISION, "num_warps": 1}
    launch(
        kernels.begin, (len(plan.corners),), values, plan.roots, plan.bad, plan.corners, **options
    )
    for step, (below, reach) in enumerate(zip(plan.below, plan.reach, strict=True)):
        launch(
            kernels.divide, (reach,), values, plan.panels, plan.roots, plan.strips, step, **options
        )
        if below:
            launch(
                kernels.subtract,
                (below,),
                *(values, plan.panels, plan.roots, plan.bad, plan.blocks, step, below),
                **options,
            )
    total = count + bool(large)
    launch(
        kernels.finish,
        (len(plan.blocks),),
        *(values, plan.roots, plan.bad, plan.blocks, plan.halves),
        *(kronecker.inverses(buffer), total),
        MATRICES=1 << (total - 1).bit_length(),
        **options,
    )
    failed = plan.bad[:count].count_nonzero()
    if large:
        failed = failed + others
        kronecker.replace_inverses(buffer, found, failed)
    return failed


@precondition.implementation("triton", when=_fits)
def _precondition(
    buffer: FactorBuffer,
    pairs: Pairs,
    gradients: Sequence[Callable[[], Tensor]],
    rows: Sequence[Rows | None],
) -> list[Tensor]:
    from ocar.accel.triton import precondition as kernels

    by_layer = {pair.layer: gradient for pair, gradient in zip(pairs, gradients, strict=True)}
    small, large = _split(pairs)
    plan, inverses = _plan(buffer, small), kronecker.inverses(buffer)
    own = [by_layer[pair.layer]() for pair in small]
    flat = torch.cat([gradient.reshape(-1).to(inverses.dtype) for gradient in own])

    def multiply(left: Tensor, right: Tensor, tiles: Tensor, *, transposed: bool = False) -> Tensor:
        out = torch.empty_like(flat)
        launch(
            kernels.multiply,
            (len(tiles),),
            *(left, right, out, tiles),
            TRANSPOSED=transposed,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            TERMS=_TERMS,
            PRECISION=PRECISION,
            num_warps=4,
            num_stages=4,
        )
        return out

    across, down, again = plan.tiles
    half = multiply(flat, inverses, across, transposed=True)  # gradient · Rᵀ
    half = multiply(inverses, half, down)  # G⁻¹ · …
    parts = multiply(half, inverses, again).split([gradient.numel() for gradient in own])
    found = {
        pair.layer: part.view_as(gradient).to(gradient.dtype)
        for pair, part, gradient in zip(small, parts, own, strict=True)
    }
    others = [by_layer[pair.layer] for pair in large]
    plain = precondition.implementations["plain"](buffer, large, others, [None] * len(large))
    found |= {pair.layer: result for pair, result in zip(large, plain, strict=True)}
    return [found[pair.layer] for pair in pairs]
