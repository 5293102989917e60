"""Products of many matrices at once; see :mod:`ocar.accel.kronecker_triton`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def multiply(
    left,
    right,
    out,
    tiles,
    TRANSPOSED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TERMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of ``left · right``, or of ``left · rightᵀ`` if ``TRANSPOSED``.

    A row of ``tiles``: starts of the three matrices; rows, columns and terms of the product; row
    and column of the tile; first and last block of terms.
    """
    task = tiles + tl.program_id(0) * 10
    left += tl.load(task)
    right += tl.load(task + 1)
    out += tl.load(task + 2)
    height, width, length = tl.load(task + 3), tl.load(task + 4), tl.load(task + 5)
    rows = tl.load(task + 6) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.load(task + 7) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for block in range(tl.load(task + 8), tl.load(task + 9)):
        terms = block * TERMS + tl.arange(0, TERMS)
        across, down = terms[None, :], terms[:, None]
        one = tl.load(
            left + rows * length + across, mask=(rows < height) & (across < length), other=0.0
        )
        where = columns * length + down if TRANSPOSED else down * width + columns
        other = tl.load(right + where, mask=(down < length) & (columns < width), other=0.0)
        total = tl.dot(one, other, total, input_precision=PRECISION)
    there = (rows < height) & (columns < width)
    tl.store(out + rows * width + columns, total, mask=there)
