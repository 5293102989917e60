"""Products of many matrices with their own transposes; see :mod:`ocar.accel.gram`.

``addresses`` has the address of each operand, a row of ``shapes`` its rows and the locations of an
image. A row of ``programs`` is one tile of one product: operand, row and column of the tile, first
and last of the terms that it adds up, and which of the ``parts`` it writes. A long sum is shared
out to several programs, so that a product with few tiles fills the device.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _begin(addresses, shapes, programs, LAYERS: tl.constexpr, TILE: tl.constexpr):
    """What a program is for: its row, the operand, its shape, rows and columns of the tile."""
    program = programs + tl.program_id(0) * 6
    number = tl.load(program)
    found = addresses[0]
    for other in tl.static_range(1, LAYERS):
        found = tl.where(number == other, addresses[other], found)
    operand = tl.multiple_of(found.to(tl.pointer_type(tl.float32)), [16])
    row = tl.load(program + 1) * TILE + tl.arange(0, TILE)
    column = tl.load(program + 2) * TILE + tl.arange(0, TILE)
    return program, operand, shapes + 2 * number, row, column


@triton.jit
def square_channels_first(
    addresses,
    shapes,
    programs,
    parts,
    LAYERS: tl.constexpr,
    TILE: tl.constexpr,
    TERMS: tl.constexpr,
):
    """Operands that are channels first, with a multiple of ``TERMS`` locations an image."""
    program, g, shape, row, column = _begin(addresses, shapes, programs, LAYERS, TILE)
    size, area = tl.load(shape), tl.multiple_of(tl.load(shape + 1), [TERMS])
    total = tl.zeros((TILE, TILE), tl.float32)
    for block in range(tl.load(program + 3) // TERMS, tl.load(program + 4) // TERMS):
        image = block * TERMS // area
        place = (block * TERMS - image * area + tl.arange(0, TERMS))[None, :]
        where = (image * size + row)[:, None] * area + place
        one = tl.load(g + where, mask=(row < size)[:, None], other=0.0)
        where = (image * size + column)[:, None] * area + place
        other = tl.load(g + where, mask=(column < size)[:, None], other=0.0)
        total = tl.dot(one, other.T, total, input_precision="tf32")
    _write(parts, tl.load(program + 5), total, TILE)


@triton.jit
def square_channels_last(
    addresses,
    shapes,
    programs,
    parts,
    LAYERS: tl.constexpr,
    TILE: tl.constexpr,
    TERMS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Operands that are channels last."""
    program, g, shape, row, column = _begin(addresses, shapes, programs, LAYERS, TILE)
    size = tl.load(shape)
    if ALIGNED:
        size = tl.multiple_of(size, [4])
    row, column = row[None, :], column[None, :]
    end = tl.load(program + 4)
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(tl.load(program + 3), end, TERMS):
        place = (start + tl.arange(0, TERMS))[:, None]
        one = tl.load(g + place * size + row, mask=(place < end) & (row < size), other=0.0)
        other = tl.load(g + place * size + column, mask=(place < end) & (column < size), other=0.0)
        total = tl.dot(one.T, other, total, input_precision="tf32")
    _write(parts, tl.load(program + 5), total, TILE)


@triton.jit
def _write(parts, part, total, TILE: tl.constexpr):
    inside = tl.arange(0, TILE)
    where = inside[:, None] * TILE + inside[None, :]
    tl.store(parts + part.to(tl.int64) * TILE * TILE + where, total)


@triton.jit
def add_up(parts, out, shapes, scales, tiles, TILE: tl.constexpr):
    """Add up the parts of a tile; write it and its transpose.

    A row of ``tiles``: operand, row and column of the tile, its first part, the number of parts,
    and the start of the product in ``out``.
    """
    tile = tiles + tl.program_id(0) * 6
    number = tl.load(tile)
    size = tl.load(shapes + 2 * number)
    out += tl.load(tile + 5)
    inside = tl.arange(0, TILE)
    where = inside[:, None] * TILE + inside[None, :]
    first = tl.load(tile + 3)
    total = tl.zeros((TILE, TILE), tl.float32)
    parts += first.to(tl.int64) * TILE * TILE
    for part in range(tl.load(tile + 4)):
        total += tl.load(parts + part * TILE * TILE + where)
    total *= tl.load(scales + number)
    row, column = tl.load(tile + 1) * TILE + inside, tl.load(tile + 2) * TILE + inside
    there = (row < size)[:, None] & (column < size)[None, :]
    tl.store(out + row[:, None] * size + column[None, :], total, mask=there)
    tl.store(out + column[None, :] * size + row[:, None], total, mask=there)
