"""Inverses of many matrices at once; see :mod:`ocar.accel.kronecker_triton`.

A matrix is cut into blocks of SIDE × SIDE. With M = L·Lᵀ, each step takes one column of blocks
out of all rows below it; what is eliminated of M is replaced by L⁻¹, row by row. A step is thus one
of the Cholesky factorisation and of the substitution into the identity at the same time. The
factorisation of a diagonal block cannot be shared out. It runs at the end of the step before, in
parallel with the products of the other blocks.

``blocks`` has a row of six numbers for each block on or below the diagonal: start and size of its
matrix, row and column of the block, start of the matrix' own blocks in ``panels`` and ``roots``,
and number of the matrix. ``strips`` has the same for each block along the side of a matrix.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _read(blocks, number):
    """One row of a table."""
    row = blocks + number * 6
    start, size = tl.load(row), tl.load(row + 1)
    return start, size, tl.load(row + 2), tl.load(row + 3), tl.load(row + 4), tl.load(row + 5)


@triton.jit
def _places(row, column, size, SIDE: tl.constexpr):
    """Offsets of a block within its matrix, and which of them are inside."""
    rows = row * SIDE + tl.arange(0, SIDE)[:, None]
    columns = column * SIDE + tl.arange(0, SIDE)[None, :]
    return rows * size + columns, (rows < size) & (columns < size)


@triton.jit
def _load(values, row, column, size, SIDE: tl.constexpr):
    """A block of a matrix, padded with zeros."""
    where, there = _places(row, column, size, SIDE)
    return tl.load(values + where, mask=there, other=0.0)


@triton.jit
def _within(SIDE: tl.constexpr):
    """Offsets within a block that is stored by itself."""
    inside = tl.arange(0, SIDE)
    return inside[:, None] * SIDE + inside[None, :]


@triton.jit
def _times(one, other, PRECISION: tl.constexpr):
    """The product of two blocks."""
    return tl.dot(one, other, input_precision=PRECISION)


@triton.jit
def _only(values, where):
    """The one value where the mask is true; a sum of integers is faster than one of floats."""
    bits = tl.where(where, values.to(tl.int32, bitcast=True), 0)
    return tl.sum(bits, axis=0).to(tl.float32, bitcast=True)


@triton.jit
def _factorise_small(block, first, size, SIDE: tl.constexpr):
    """L⁻¹ of a positive definite block L·Lᵀ on the diagonal, and how many pivots were bad.

    Row by row the block becomes the inverse of the unit triangular factor. Right of the current
    column it is still the block, left of it the inverse. The block is symmetric, so its upper half
    stands for the lower one.
    """
    number = tl.arange(0, SIDE)
    rows, columns = number[:, None], number[None, :]
    # Beyond the matrix the block is a part of the identity.
    block = tl.where((rows == columns) & (first + rows >= size), 1.0, block)
    pivots = tl.full((SIDE,), 1.0, tl.float32)
    bad = 0
    for step in range(SIDE):
        line = _only(block, rows == step)
        pivot = _only(line, number == step)
        good = (pivot > 1e-30) & (pivot < 1e30)
        pivot = tl.where(good, pivot, 1.0)
        bad += tl.where(good, 0, 1)
        pivots = tl.where(number == step, pivot, pivots)
        share = tl.where(number == step, 1.0, line) / pivot
        below = tl.where(number > step, line, 0.0)
        block = tl.where(columns == step, 0.0, block) - below[:, None] * share[None, :]
    block = tl.where(rows > columns, block, tl.where(rows == columns, 1.0, 0.0))
    return block * (1.0 / tl.sqrt(pivots))[:, None], bad


@triton.jit
def _factorise(block, row, size, SIDE: tl.constexpr, PRECISION: tl.constexpr):
    """As :func:`_factorise_small`, by quarters: half as many steps, each half as long."""
    HALF: tl.constexpr = SIDE // 2
    parts = tl.permute(tl.reshape(block, (2, HALF, 2, HALF)), (1, 3, 0, 2))
    left, right = tl.split(parts)
    upper, corner = tl.split(left)
    _, lower = tl.split(right)
    one, bad = _factorise_small(upper, row * SIDE, size, HALF)
    panel = _times(corner, tl.trans(one), PRECISION)
    lower -= _times(panel, tl.trans(panel), PRECISION)
    other, more = _factorise_small(lower, row * SIDE + HALF, size, HALF)
    corner = -_times(other, _times(panel, one, PRECISION), PRECISION)
    columns = tl.join(tl.join(one, corner), tl.join(tl.zeros_like(one), other))
    return tl.reshape(tl.permute(columns, (2, 0, 3, 1)), (SIDE, SIDE)), bad + more


@triton.jit
def _store_root(
    block, roots, bad, own, matrix, step, size, SIDE: tl.constexpr, PRECISION: tl.constexpr
):
    """Factorise a diagonal block, for the step that divides by it."""
    root, count = _factorise(block, step, size, SIDE, PRECISION)
    tl.store(roots + (own + step) * SIDE * SIDE + _within(SIDE), root)
    if (step == 0) | (count > 0):
        tl.store(bad + matrix, count)


@triton.jit
def begin(values, roots, bad, corners, SIDE: tl.constexpr, PRECISION: tl.constexpr):
    """Factorise the first diagonal block of each matrix."""
    start, size, _, _, own, matrix = _read(corners, tl.program_id(0))
    block = _load(values + start, 0, 0, size, SIDE)
    _store_root(block, roots, bad, own, matrix, 0, size, SIDE, PRECISION)


@triton.jit(do_not_specialize=["step"])
def divide(values, panels, roots, strips, step, SIDE: tl.constexpr, PRECISION: tl.constexpr):
    """Multiply a column of blocks, and the row that it crosses, with L⁻¹ of their crossing."""
    start, size, row, _, own, _ = _read(strips, tl.program_id(0))
    values += start
    area: tl.constexpr = SIDE * SIDE
    root = tl.load(roots + (own + step) * area + _within(SIDE))
    if row > step:
        block = _times(_load(values, row, step, size, SIDE), tl.trans(root), PRECISION)
        tl.store(panels + (own + row) * area + _within(SIDE), block)
    elif row < step:
        block = _times(root, _load(values, step, row, size, SIDE), PRECISION)
        where, there = _places(step, row, size, SIDE)
        tl.store(values + where, block, mask=there)


@triton.jit(do_not_specialize=["step", "count"])
def subtract(
    values, panels, roots, bad, blocks, step, count, SIDE: tl.constexpr, PRECISION: tl.constexpr
):
    """Take a column of blocks out of all rows below it: the first ``count`` of the blocks.

    Right of the column a block becomes part of the Schur complement, left of it part of the
    inverse. The next diagonal block takes longest: it starts first and is factorised at once.
    """
    number = count - 1 - tl.program_id(0)
    start, size, row, column, own, matrix = _read(blocks, number)
    area: tl.constexpr = SIDE * SIDE
    inside = _within(SIDE)
    where, there = _places(row, column, size, SIDE)
    share = tl.load(panels + (own + row) * area + inside)
    if column > step:
        line = tl.trans(tl.load(panels + (own + column) * area + inside))
    else:
        line = _inverse_block(values, roots, start, size, own, step, column, SIDE)
    block = tl.load(values + start + where, mask=there & (column != step), other=0.0)
    block -= tl.dot(share, line, input_precision=PRECISION)
    tl.store(values + start + where, block, mask=there)
    if (column == row) & (row == step + 1):
        _store_root(block, roots, bad, own, matrix, row, size, SIDE, PRECISION)


@triton.jit
def _inverse_block(values, roots, start, size, own, row, column, SIDE: tl.constexpr):
    """A block of L⁻¹ in a finished row; diagonal blocks are stored in ``roots``."""
    where, there = _places(row, column, size, SIDE)
    block = tl.load(values + start + where, mask=there & (row != column), other=0.0)
    inside = (own + row) * SIDE * SIDE + _within(SIDE)
    return block + tl.load(roots + inside, mask=there & (row == column), other=0.0)


@triton.jit
def finish(
    values,
    roots,
    bad,
    blocks,
    matrices,
    out,
    count,
    MATRICES: tl.constexpr,
    SIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write L⁻¹ of each A, the inverse of each G, unless a matrix had a bad pivot.

    The last number of a row of ``matrices`` is that of its G; ``bad`` has ``count`` numbers.
    """
    start, size, row, column, own, matrix = _read(blocks, tl.program_id(0))
    numbers = tl.arange(0, MATRICES)
    wrong = tl.load(bad + numbers, mask=numbers < count, other=0)
    good = tl.sum(wrong, axis=0) == 0
    where, there = _places(row, column, size, SIDE)
    if tl.load(matrices + 6 * matrix + 5) != matrix:
        block = _inverse_block(values, roots, start, size, own, row, column, SIDE)
        tl.store(out + start + where, block, mask=there & good)
    else:
        block = tl.zeros((SIDE, SIDE), tl.float32)
        for step in range(row, tl.cdiv(size, SIDE)):
            left = _inverse_block(values, roots, start, size, own, step, row, SIDE)
            right = _inverse_block(values, roots, start, size, own, step, column, SIDE)
            block += tl.dot(tl.trans(left), right, input_precision=PRECISION)
        tl.store(out + start + where, block, mask=there & good)
        if row != column:
            where, there = _places(column, row, size, SIDE)
            tl.store(out + start + where, tl.trans(block), mask=there & good)
