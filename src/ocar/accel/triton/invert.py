"""Inverses of many matrices at once, for Triton; see :mod:`ocar.accel.invert`.

A matrix is seen as blocks of SIDE × SIDE. ``tasks`` has a row of six numbers for each block on or
below the diagonal: where its matrix starts, of what size that is, the block's row and column, where
the matrix' own blocks start in ``panels`` and ``roots``, and the number of the matrix. ``strips``
has the same for each block along the side of a matrix, called its row there.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def about(tasks, number):
    """A row of the table."""
    row = tasks + number * 6
    start, size = tl.load(row), tl.load(row + 1)
    return start, size, tl.load(row + 2), tl.load(row + 3), tl.load(row + 4), tl.load(row + 5)


@triton.jit
def places(row, column, size, SIDE: tl.constexpr):
    """Where the numbers of a block are in its matrix, and which of them there are."""
    rows = row * SIDE + tl.arange(0, SIDE)[:, None]
    columns = column * SIDE + tl.arange(0, SIDE)[None, :]
    return rows * size + columns, (rows < size) & (columns < size)


@triton.jit
def load(values, row, column, size, SIDE: tl.constexpr):
    """A block of a matrix, with zeros for what is beyond it."""
    where, there = places(row, column, size, SIDE)
    return tl.load(values + where, mask=there, other=0.0)


@triton.jit
def within(SIDE: tl.constexpr):
    """Where the numbers of a block are that lies by itself."""
    inside = tl.arange(0, SIDE)
    return inside[:, None] * SIDE + inside[None, :]


@triton.jit
def times(one, other, PRECISION: tl.constexpr):
    """A product of blocks."""
    return tl.dot(one, other, input_precision=PRECISION)


@triton.jit
def only(values, where):
    """The one value there: as whole numbers it is faster to find, by adding nothing to it."""
    bits = tl.where(where, values.to(tl.int32, bitcast=True), 0)
    return tl.sum(bits, axis=0).to(tl.float32, bitcast=True)


@triton.jit
def factorize_small(block, first, size, SIDE: tl.constexpr):
    """L⁻¹ of a positive definite block L·Lᵀ on the diagonal, and how many pivots were bad.

    Row by row the block becomes the inverse of the unit triangular factor: what is right of the
    column in turn still belongs to the block, what is left of it to the inverse. What is right of
    the diagonal serves for what is below it too.
    """
    number = tl.arange(0, SIDE)
    rows, columns = number[:, None], number[None, :]
    # What is beyond the matrix is made a part of the identity.
    block = tl.where((rows == columns) & (first + rows >= size), 1.0, block)
    pivots = tl.full((SIDE,), 1.0, tl.float32)
    bad = 0
    for turn in range(SIDE):
        line = only(block, rows == turn)
        pivot = only(line, number == turn)
        good = (pivot > 1e-30) & (pivot < 1e30)
        pivot = tl.where(good, pivot, 1.0)
        bad += tl.where(good, 0, 1)
        pivots = tl.where(number == turn, pivot, pivots)
        share = tl.where(number == turn, 1.0, line) / pivot
        below = tl.where(number > turn, line, 0.0)
        block = tl.where(columns == turn, 0.0, block) - below[:, None] * share[None, :]
    block = tl.where(rows > columns, block, tl.where(rows == columns, 1.0, 0.0))
    return block * (1.0 / tl.sqrt(pivots))[:, None], bad


@triton.jit
def factorize(block, row, size, SIDE: tl.constexpr, PRECISION: tl.constexpr):
    """As :func:`factorize_small`, by quarters: a turn takes less than half the time for each."""
    HALF: tl.constexpr = SIDE // 2
    parts = tl.permute(tl.reshape(block, (2, HALF, 2, HALF)), (1, 3, 0, 2))
    left, right = tl.split(parts)
    upper, corner = tl.split(left)
    _, lower = tl.split(right)
    one, bad = factorize_small(upper, row * SIDE, size, HALF)
    panel = times(corner, tl.trans(one), PRECISION)
    lower -= times(panel, tl.trans(panel), PRECISION)
    other, more = factorize_small(lower, row * SIDE + HALF, size, HALF)
    corner = -times(other, times(panel, one, PRECISION), PRECISION)
    columns = tl.join(tl.join(one, corner), tl.join(tl.zeros_like(one), other))
    return tl.reshape(tl.permute(columns, (2, 0, 3, 1)), (SIDE, SIDE)), bad + more


@triton.jit
def keep_root(
    block, roots, bad, own, matrix, turn, size, SIDE: tl.constexpr, PRECISION: tl.constexpr
):
    """Factorize a block on the diagonal for the turn that it is to be divided by in."""
    root, count = factorize(block, turn, size, SIDE, PRECISION)
    tl.store(roots + (own + turn) * SIDE * SIDE + within(SIDE), root)
    if (turn == 0) | (count > 0):
        tl.store(bad + matrix, count)


@triton.jit
def begin(values, roots, bad, heads, SIDE: tl.constexpr, PRECISION: tl.constexpr):
    """Factorize the first block of each matrix, of which ``heads`` has the tasks."""
    start, size, _, _, own, matrix = about(heads, tl.program_id(0))
    block = load(values + start, 0, 0, size, SIDE)
    keep_root(block, roots, bad, own, matrix, 0, size, SIDE, PRECISION)


@triton.jit(do_not_specialize=["turn"])
def divide(values, panels, roots, strips, turn, SIDE: tl.constexpr, PRECISION: tl.constexpr):
    """Multiply a column of blocks, and the row that it crosses, with L⁻¹ of where they cross."""
    start, size, row, _, own, _ = about(strips, tl.program_id(0))
    values += start
    area: tl.constexpr = SIDE * SIDE
    root = tl.load(roots + (own + turn) * area + within(SIDE))
    if row > turn:
        block = times(load(values, row, turn, size, SIDE), tl.trans(root), PRECISION)
        tl.store(panels + (own + row) * area + within(SIDE), block)
    elif row < turn:
        block = times(root, load(values, turn, row, size, SIDE), PRECISION)
        where, there = places(turn, row, size, SIDE)
        tl.store(values + where, block, mask=there)


@triton.jit(do_not_specialize=["turn", "count"])
def subtract(
    values, panels, roots, bad, tasks, turn, count, SIDE: tl.constexpr, PRECISION: tl.constexpr
):
    """Take a column of blocks out of all rows below it, the first ``count`` of the tasks.

    Right of the column a block becomes part of the Schur complement, left of it part of the
    inverse, and that of the column itself is born. The next block on the diagonal, which takes
    longest, is begun first and factorized at once.
    """
    number = count - 1 - tl.program_id(0)
    start, size, row, column, own, matrix = about(tasks, number)
    area: tl.constexpr = SIDE * SIDE
    inside = within(SIDE)
    where, there = places(row, column, size, SIDE)
    share = tl.load(panels + (own + row) * area + inside)
    if column > turn:
        line = tl.trans(tl.load(panels + (own + column) * area + inside))
    else:
        line = inverse_block(values, roots, start, size, own, turn, column, SIDE)
    block = tl.load(values + start + where, mask=there & (column != turn), other=0.0)
    block -= tl.dot(share, line, input_precision=PRECISION)
    tl.store(values + start + where, block, mask=there)
    if (column == row) & (row == turn + 1):
        keep_root(block, roots, bad, own, matrix, row, size, SIDE, PRECISION)


@triton.jit
def inverse_block(values, roots, start, size, own, row, column, SIDE: tl.constexpr):
    """A block of L⁻¹, in a row that is done; that on the diagonal lies by itself."""
    where, there = places(row, column, size, SIDE)
    block = tl.load(values + start + where, mask=there & (row != column), other=0.0)
    inside = (own + row) * SIDE * SIDE + within(SIDE)
    return block + tl.load(roots + inside, mask=there & (row == column), other=0.0)


@triton.jit
def finish(
    values,
    roots,
    bad,
    unless,
    tasks,
    halves,
    out,
    matrices,
    MATRICES: tl.constexpr,
    SIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write L⁻¹ or the inverse itself, unless something is wrong with any matrix."""
    start, size, row, column, own, matrix = about(tasks, tl.program_id(0))
    numbers = tl.arange(0, MATRICES)
    wrong = tl.load(bad + numbers, mask=numbers < matrices, other=0)
    wrong += tl.load(unless + numbers, mask=numbers < matrices, other=0)
    good = tl.sum(wrong, axis=0) == 0
    where, there = places(row, column, size, SIDE)
    if tl.load(halves + matrix) != 0:
        block = inverse_block(values, roots, start, size, own, row, column, SIDE)
        tl.store(out + start + where, block, mask=there & good)
    else:
        block = tl.zeros((SIDE, SIDE), tl.float32)
        for turn in range(row, tl.cdiv(size, SIDE)):
            left = inverse_block(values, roots, start, size, own, turn, row, SIDE)
            right = inverse_block(values, roots, start, size, own, turn, column, SIDE)
            block += tl.dot(tl.trans(left), right, input_precision=PRECISION)
        tl.store(out + start + where, block, mask=there & good)
        if row != column:
            where, there = places(column, row, size, SIDE)
            tl.store(out + start + where, tl.trans(block), mask=there & good)
