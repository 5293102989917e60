"""Averaging and damping many factors at once, for Triton; see :mod:`ocar.curvature.pool`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def trace(values, estimates, starts, sizes, traces, matrices, BLOCK: tl.constexpr):
    """Sum up the diagonals of one matrix: its average, then its estimate."""
    matrix = tl.program_id(0)
    start, size = tl.load(starts + matrix), tl.load(sizes + matrix)
    inside = tl.arange(0, BLOCK)
    where, there = start + inside * (size + 1), inside < size
    tl.store(traces + matrix, tl.sum(tl.load(values + where, mask=there, other=0.0), axis=0))
    new = tl.sum(tl.load(estimates + where, mask=there, other=0.0), axis=0)
    tl.store(traces + matrices + matrix, new)


@triton.jit
def mixed(old, new, rate):
    """``(1 − rate) · old + rate · new``, the old one as it is if the rate is 0."""
    small, large = old + rate * (new - old), new - (new - old) * (1.0 - rate)
    return tl.where(rate == 0, old, tl.where(rate < 0.5, small, large))


@triton.jit
def mean(traces, dims, matrix, matrices, rate):
    """The mean of a diagonal after averaging."""
    new = mixed(tl.load(traces + matrix), tl.load(traces + matrices + matrix), rate)
    return new / tl.load(dims + matrix)


@triton.jit
def mix(
    values,
    estimates,
    starts,
    sizes,
    traces,
    dims,
    partners,
    ema,
    head_rate,
    damping,
    accepted,
    infinite,
    chunks,
    matrices,
    head,
    BLOCK: tl.constexpr,
):
    """Mix estimates into averages, and write the damped averages where the estimates were."""
    number = tl.program_id(0)
    matrix, first = tl.load(chunks + 2 * number), tl.load(chunks + 2 * number + 1)
    start, size = tl.load(starts + matrix), tl.load(sizes + matrix)
    partner = tl.load(partners + matrix)
    taken = tl.load(accepted) != 0
    usual = tl.where(taken, tl.load(ema), 0.0).to(tl.float32)
    of_head = tl.where(taken, tl.load(head_rate), 0.0).to(tl.float32)
    rate = tl.where(matrix == head, of_head, usual)
    own = mean(traces, dims, matrix, matrices, rate)
    other = mean(traces, dims, partner, matrices, tl.where(partner == head, of_head, usual))
    ratio = tl.where((own > 0) & (other > 0), own / other, 1.0)
    level = tl.sqrt(ratio * tl.load(damping).to(tl.float32))
    if first == 0:
        tl.store(infinite + matrix, tl.where((own > -3e38) & (own < 3e38), 0, 1))
    inside = first + tl.arange(0, BLOCK)
    there = inside < size * size
    old = tl.load(values + start + inside, mask=there)
    value = mixed(old, tl.load(estimates + start + inside, mask=there), rate)
    tl.store(values + start + inside, value, mask=there)
    value += tl.where(inside % (size + 1) == 0, level, 0.0)
    tl.store(estimates + start + inside, value, mask=there)
