"""Keeping tensors and going back to them, for Triton; see :mod:`ocar.accel.snapshot`.

A row of ``table`` stands for a piece of a tensor: its address, where its copy begins among those of
all, how many numbers it has, and whether it is part of a weight, which may be shortened.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _find(table, number, ALIGNED: tl.constexpr):
    """The numbers of a piece, where their copies begin, how many there are, if it may go half."""
    row = table + number * 4
    piece = tl.load(row).to(tl.pointer_type(tl.float32))
    start = tl.load(row + 1)
    if ALIGNED:
        piece, start = tl.multiple_of(piece, [16]), tl.multiple_of(start, [4])
    return piece, start, tl.load(row + 2), tl.load(row + 3)


@triton.jit
def keep(table, kept, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """Copy a piece."""
    piece, start, length, _ = _find(table, tl.program_id(0), ALIGNED)
    inside = tl.arange(0, BLOCK)
    there = inside < length
    tl.store(kept + start + inside, tl.load(piece + inside, mask=there), mask=there)


@triton.jit
def sum_up(table, sums, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """The sum of a piece: finite only if all of it is."""
    number = tl.program_id(0)
    piece, _, length, _ = _find(table, number, ALIGNED)
    inside = tl.arange(0, BLOCK)
    value = tl.load(piece + inside, mask=inside < length, other=0.0)
    tl.store(sums + number, tl.sum(value, axis=0))


@triton.jit(do_not_specialize=["pieces", "samples"])
def decide(
    sums,
    loss,
    trusted,
    divergences,
    bound,
    counts,
    largest,
    accepted,
    share,
    pieces,
    samples,
    PIECES: tl.constexpr,
    SAMPLES: tl.constexpr,
):
    """Whether a batch is accepted, which part of the way its weights go, and take note of it.

    ``counts`` are of batches that were not finite, out of scale, shortened, copies, and how many
    were not finite in a row. If ``SAMPLES`` is 0 no divergence was measured.
    """
    piece = tl.arange(0, PIECES)
    total = tl.sum(tl.load(sums + piece, mask=piece < pieces, other=0.0).to(tl.float64), axis=0)
    total += tl.load(loss).to(tl.float64)
    trust = tl.load(trusted) != 0
    part = 1.0
    if SAMPLES > 0:
        sample = tl.arange(0, SAMPLES)
        there = sample < samples
        kl = tl.sum(tl.load(divergences + sample, mask=there, other=0.0), axis=0) / samples
        total += kl.to(tl.float64)
        limit = tl.load(bound)
        part = tl.where(kl > limit, limit / kl, 1.0)  # also if it is not a number
    finite = tl.abs(total) < float("inf")
    accept = finite & trust
    tl.store(accepted, accept)
    tl.store(share, part)
    bad = (trust & ~finite).to(tl.int64)
    tl.store(counts, tl.load(counts) + bad)
    tl.store(counts + 1, tl.load(counts + 1) + (~trust).to(tl.int64))
    tl.store(counts + 4, (tl.load(counts + 4) + 1) * bad)
    if SAMPLES > 0:
        tl.store(counts + 2, tl.load(counts + 2) + ((part < 1.0) & accept).to(tl.int64))
        before = tl.load(largest)
        tl.store(largest, tl.where(accept & (kl > before), kl, before))


@triton.jit(do_not_specialize=["pieces"])
def put_back(table, kept, accepted, share, pieces, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """Make tensors what they were unless accepted, and let weights go only part of the way.

    If they are accepted, and go all of it, nothing is read or written.
    """
    accept, part = tl.load(accepted) != 0, tl.load(share)
    if (accept & (part == 1.0)) == 0:
        for number in range(tl.program_id(0), pieces, tl.num_programs(0)):
            piece, start, length, shortens = _find(table, number, ALIGNED)
            inside = tl.arange(0, BLOCK)
            there = inside < length
            old = tl.load(kept + start + inside, mask=there)
            new = tl.load(piece + inside, mask=there)
            way = new - old
            less = tl.where(part < 0.5, old + part * way, new - way * (1.0 - part))
            value = tl.where((shortens != 0) & (part < 1.0), less, new)
            tl.store(piece + inside, tl.where(accept, value, old), mask=there)


@triton.jit(do_not_specialize=["size", "total"])
def look_for_copies(x, accepted, counts, remembered, size, total, BLOCK: tl.constexpr):
    """Whether a batch is worth a place in the memory, and count it if it is copies of one sample.

    By one program: each of the ``total`` numbers is held against that of the first sample, which
    has ``size`` of them.
    """
    others = tl.zeros((BLOCK,), tl.int32)
    for start in range(size, total, BLOCK):
        inside = start + tl.arange(0, BLOCK)
        there = inside < total
        one = tl.load(x + inside, mask=there, other=0)
        first = tl.load(x + inside % size, mask=there, other=0)
        others += (there & (one != first)).to(tl.int32)
    copies = (tl.sum(others, axis=0) == 0) & (total > size)
    accept = tl.load(accepted) != 0
    tl.store(remembered, accept & ~copies)
    tl.store(counts + 3, tl.load(counts + 3) + (accept & copies).to(tl.int64))
