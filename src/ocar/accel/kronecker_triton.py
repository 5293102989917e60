"""Kronecker factors on a GPU: one kernel takes one step for all layers.

A library factorises one matrix at a time, in kernels that each want most of the device, and takes
a thousand launches for the factors of a ResNet. Here every kernel takes one step for all matrices.

Of A the inverse of the Cholesky factor is kept, A⁻¹ = RᵀR with R triangular; of G the inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, product
from typing import NamedTuple

import torch
from torch import Tensor

from ocar.accel import kronecker
from ocar.accel.buffer import FactorBuffer, Pair
from ocar.accel.kronecker import (
    LayerGradient,
    Pairs,
    inverse_tensors,
    invert,
    mix_and_damp,
    precondition,
)
from ocar.accel.operation import has_triton, launch, power_of_2

LARGEST = 2048  # rows of a factor up to which our kernels are faster than a library
SIDE = 32  # rows of a block of an inverse: one for each thread of the warp that factorises it
PRECISION = "tf32x3"  # of products: nearly that of float32, on tensor cores
_CHUNK = 4096  # numbers of a factor that one program averages
_ROWS, _COLUMNS, _TERMS = 32, 64, 32  # of a tile of a product, and the terms it adds at a time


class _Matrix(NamedTuple):
    """One square matrix of the buffer, and the numbers of the matrices damped with it."""

    start: int
    size: int
    statistic: int
    first: int  # A of the same group, one for each part
    parts: int
    g: int


class _Plan:
    """Tables for the kernels; they cannot be made while a graph is recorded.

    All layers are small enough. The matrices of a layer, or of a group of it, are A of each part,
    then G.
    """

    def __init__(self, buffer: FactorBuffer, pairs: Pairs) -> None:
        self._device = buffer.averages.device
        self._matrices: list[_Matrix] = []
        for pair, group in ((p, group) for p in pairs for group in range(p.groups)):
            first, parts = len(self._matrices), pair.parts
            a, g = pair.names
            shared = (first, parts, first + parts)
            for number in range(group * parts, (group + 1) * parts):
                start = buffer.start(a) + number * pair.d_in**2
                self._matrices.append(_Matrix(start, pair.d_in, buffer.index(a), *shared))
            start = buffer.start(g) + group * pair.d_out**2
            self._matrices.append(_Matrix(start, pair.d_out, buffer.index(g), *shared))
        self.count = len(self._matrices)
        self.matrices = self._table(self._matrices)
        self.largest = max(matrix.size for matrix in self._matrices)
        self.traces = torch.zeros(2, self.count, device=self._device)
        # One number for each matrix, and one for all matrices that are too large for the kernels.
        self.bad = torch.zeros(self.count + 1, dtype=torch.int32, device=self._device)
        # Blocks on and below the diagonals of the matrices.
        counts = [-(-matrix.size // SIDE) for matrix in self._matrices]
        firsts = [0, *accumulate(counts)]
        blocks = [
            (matrix.start, matrix.size, row, column, firsts[number], number)
            for number, matrix in enumerate(self._matrices)
            for row in range(counts[number])
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
        length = sum(counts) * SIDE**2
        self.panels, self.roots = torch.zeros(2, length, device=self._device).unbind()

    def _table(self, rows: Sequence[tuple[int, ...]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=self._device)

    @cached_property
    def chunks(self) -> Tensor:
        """Pieces of the matrices to average: number of the matrix, first number."""
        return self._table(
            [
                (number, first)
                for number, matrix in enumerate(self._matrices)
                for first in range(0, matrix.size**2, _CHUNK)
            ]
        )

    @cached_property
    def tiles(self) -> list[Tensor]:
        """Tiles of the three products of :func:`_precondition`, the longest sums first."""
        tables: tuple[list[tuple[int, ...]], ...] = ([], [], [])
        at = 0
        for number, a in enumerate(self._matrices):
            if number == a.g:
                continue
            g = self._matrices[a.g]
            rows, columns = g.size, a.size
            places = product(range(-(-rows // _ROWS)), range(-(-columns // _COLUMNS)))
            for row, column in places:
                first, last = column * _COLUMNS, min(columns, (column + 1) * _COLUMNS)
                with_root = at, a.start, at, rows, columns, columns, row, column
                with_inverse = g.start, at, at, rows, columns, rows, row, column
                # R is triangular: the sums leave out its zeros.
                tables[0].append((*with_root, 0, -(-last // _TERMS)))
                tables[1].append((*with_inverse, 0, -(-rows // _TERMS)))
                tables[2].append((*with_root, first // _TERMS, -(-columns // _TERMS)))
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
    """The layers that fit the kernels, and the larger ones."""
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
    given = (buffer.averages, buffer.estimates, plan.matrices, plan.traces)
    block = power_of_2(plan.largest)
    launch(kernels.trace, (plan.count,), *given, plan.count, BLOCK=block)
    ok = plan.traces[1].sum().isfinite()  # the diagonals bound the rest
    if large:
        ok = ok & kronecker.are_finite(buffer, large)
    launch(
        kernels.mix,
        (len(plan.chunks),),
        *(*given, rates, dims, torch.as_tensor(damping).to(rates), ok, plan.chunks, plan.count),
        BLOCK=_CHUNK,
    )
    kronecker.take_estimates(buffer, large, rates, dims, damping, ok)
    return ok


@invert.implementation("triton", when=_fits)
def _invert(buffer: FactorBuffer, pairs: Pairs) -> Tensor:
    from ocar.accel.triton import invert as kernels

    small, large = _split(pairs)
    plan, values = _plan(buffer, small), buffer.estimates
    count = plan.count
    if large:
        found, others = kronecker.find_inverses(buffer, large)
        plan.bad[count].copy_(others)
    options = {"SIDE": SIDE, "PRECISION": PRECISION, "num_warps": 1}
    panels, roots, bad, blocks = plan.panels, plan.roots, plan.bad, plan.blocks
    launch(kernels.begin, (len(plan.corners),), values, roots, bad, plan.corners, **options)
    for step, (below, reach) in enumerate(zip(plan.below, plan.reach, strict=True)):
        launch(kernels.divide, (reach,), values, panels, roots, plan.strips, step, **options)
        if below:
            given = (values, panels, roots, bad, blocks, step, below)
            launch(kernels.subtract, (below,), *given, **options)
    total = count + bool(large)
    launch(
        kernels.finish,
        (len(blocks),),
        *(values, roots, bad, blocks, plan.matrices, kronecker.inverses(buffer), total),
        MATRICES=power_of_2(total),
        **options,
    )
    failed = plan.bad[:count].count_nonzero()
    if large:
        failed = failed + others
        kronecker.replace_inverses(buffer, found, failed)
    return failed


@inverse_tensors.implementation("triton", when=_fits)
def _inverse_tensors(
    buffer: FactorBuffer, pairs: Pairs, *, found: bool
) -> list[tuple[Tensor, bool]]:
    flat = kronecker.inverses(buffer)
    return [
        (buffer.view(flat, name), name == pair.names[1] or not _is_small(pair))
        for pair in pairs
        for name in pair.names
    ]


@precondition.implementation(
    "triton", when=lambda buffer, gradients: _fits(buffer, tuple(own.pair for own in gradients))
)
def _precondition(buffer: FactorBuffer, gradients: Sequence[LayerGradient]) -> list[Tensor]:
    from ocar.accel.triton import precondition as kernels

    small = [gradient for gradient in gradients if _is_small(gradient.pair)]
    large = [gradient for gradient in gradients if not _is_small(gradient.pair)]
    plan = _plan(buffer, tuple(gradient.pair for gradient in small))
    inverses, own = kronecker.inverses(buffer), [gradient.make() for gradient in small]
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
    results = [p.view_as(t).to(t.dtype) for p, t in zip(parts, own, strict=True)]
    results += precondition.implementations["plain"](buffer, large)
    found = dict(zip((own.pair.layer for own in (*small, *large)), results, strict=True))
    return [found[gradient.pair.layer] for gradient in gradients]
