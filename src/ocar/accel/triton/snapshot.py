"""Copy tensors, decide, restore; see :mod:`ocar.accel.snapshot`.

A row of ``table`` is a piece of a tensor: its address, where its copy starts, its numbers, and its
kind: 2 for a weight, 1 for a statistic, 0 for others, which need not be finite.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _find(table, number, ALIGNED: tl.constexpr):
    """Address, start of the copy, length and kind of a piece."""
    row = table + number * 4
    piece = tl.load(row).to(tl.pointer_type(tl.float32))
    start = tl.load(row + 1)
    if ALIGNED:
        piece, start = tl.multiple_of(piece, [16]), tl.multiple_of(start, [4])
    return piece, start, tl.load(row + 2), tl.load(row + 3)


@triton.jit
def copy(table, copies, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """Copy a piece."""
    piece, start, length, _ = _find(table, tl.program_id(0), ALIGNED)
    inside = tl.arange(0, BLOCK)
    there = inside < length
    tl.store(copies + start + inside, tl.load(piece + inside, mask=there), mask=there)


@triton.jit
def sum_up(table, sums, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """The sum of a piece, finite only if all of it is."""
    number = tl.program_id(0)
    piece, _, length, _ = _find(table, number, ALIGNED)
    inside = tl.arange(0, BLOCK)
    value = tl.load(piece + inside, mask=inside < length, other=0.0)
    tl.store(sums + number, tl.sum(value, axis=0))


@triton.jit(do_not_specialize=["samples"])
def decide(
    total,
    ok,
    trusted,
    divergences,
    bound,
    counts,
    largest,
    accepted,
    share,
    samples,
    SAMPLES: tl.constexpr,
):
    """The verdict on a batch, by one program. ``SAMPLES`` is 0 if no divergence is known."""
    value = tl.load(total).to(tl.float64)
    trust = tl.load(trusted) != 0
    part = 1.0
    if SAMPLES > 0:
        sample = tl.arange(0, SAMPLES)
        there = sample < samples
        kl = tl.sum(tl.load(divergences + sample, mask=there, other=0.0), axis=0) / samples
        value += kl.to(tl.float64)
        limit = tl.load(bound)
        part = tl.where(kl > limit, limit / kl, 1.0)  # 1 if the divergence is not a number
    finite = (tl.abs(value) < float("inf")) & (tl.load(ok) != 0)
    accept = finite & trust
    tl.store(accepted, accept)
    tl.store(share, part)
    tl.store(counts, tl.load(counts) + (trust & ~finite).to(tl.int64))
    tl.store(counts + 1, tl.load(counts + 1) + (~trust).to(tl.int64))
    tl.store(counts + 4, (tl.load(counts + 4) + 1) * (~accept).to(tl.int64))
    if SAMPLES > 0:
        tl.store(counts + 2, tl.load(counts + 2) + ((part < 1.0) & accept).to(tl.int64))
        before = tl.load(largest)
        tl.store(largest, tl.where(accept & (kl > before), kl, before))


@triton.jit(do_not_specialize=["pieces"])
def restore(table, copies, accepted, share, pieces, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """Roll back unless accepted; let weights go only a share of their way.

    If everything is accepted, nothing is read or written.
    """
    accept, part = tl.load(accepted) != 0, tl.load(share)
    if (accept & (part == 1.0)) == 0:
        for number in range(tl.program_id(0), pieces, tl.num_programs(0)):
            piece, start, length, kind = _find(table, number, ALIGNED)
            inside = tl.arange(0, BLOCK)
            there = inside < length
            old = tl.load(copies + start + inside, mask=there)
            new = tl.load(piece + inside, mask=there)
            way = new - old
            # As torch.lerp, in the form that is exact at both ends.
            less = tl.where(part < 0.5, old + part * way, new - way * (1.0 - part))
            value = tl.where((kind == 2) & (part < 1.0), less, new)
            tl.store(piece + inside, tl.where(accept, value, old), mask=there)
