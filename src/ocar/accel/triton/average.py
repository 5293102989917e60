"""Average and damp many factors at once; see :mod:`ocar.accel.kronecker_triton`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def trace(values, estimates, starts, sizes, traces, matrices, BLOCK: tl.constexpr):
    """The trace of one matrix: of its average, then of its estimate."""
    matrix = tl.program_id(0)
    start, size = tl.load(starts + matrix), tl.load(sizes + matrix)
    inside = tl.arange(0, BLOCK)
    where, there = start + inside * (size + 1), inside < size
    tl.store(traces + matrix, tl.sum(tl.load(values + where, mask=there, other=0.0), axis=0))
    new = tl.sum(tl.load(estimates + where, mask=there, other=0.0), axis=0)
    tl.store(traces + matrices + matrix, new)


@triton.jit
def _lerp(old, new, rate):
    """As ``torch.lerp``; the old value if the rate is 0, even where the new one is infinite."""
    small, large = old + rate * (new - old), new - (new - old) * (1.0 - rate)
    return tl.where(rate == 0, old, tl.where(rate < 0.5, small, large))


@triton.jit
def _mean_trace(traces, statistics, rates, dims, ok, matrix, matrices):
    """Trace over dimension of the new average of a matrix, and its rate."""
    statistic = tl.load(statistics + matrix)
    rate = tl.where(ok, tl.load(rates + statistic), 0.0).to(tl.float32)
    new = _lerp(tl.load(traces + matrix), tl.load(traces + matrices + matrix), rate)
    return new / tl.load(dims + statistic).to(tl.float32), rate


@triton.jit
def mix(
    values,
    estimates,
    starts,
    sizes,
    traces,
    statistics,
    partners,
    rates,
    dims,
    damping,
    ok,
    chunks,
    matrices,
    BLOCK: tl.constexpr,
):
    """Take the estimates into the averages, and write the damped averages over the estimates.

    A program takes ``BLOCK`` numbers of one matrix. ``traces`` are those that :func:`trace` left.
    """
    number = tl.program_id(0)
    matrix, first = tl.load(chunks + 2 * number), tl.load(chunks + 2 * number + 1)
    start, size = tl.load(starts + matrix), tl.load(sizes + matrix)
    taken = tl.load(ok) != 0
    own, rate = _mean_trace(traces, statistics, rates, dims, taken, matrix, matrices)
    partner = tl.load(partners + matrix)
    other, _ = _mean_trace(traces, statistics, rates, dims, taken, partner, matrices)
    ratio = tl.where((own > 0) & (other > 0), own / other, 1.0)
    level = tl.sqrt(ratio * tl.load(damping).to(tl.float32))
    inside = first + tl.arange(0, BLOCK)
    there = inside < size * size
    old = tl.load(values + start + inside, mask=there)
    value = _lerp(old, tl.load(estimates + start + inside, mask=there), rate)
    tl.store(values + start + inside, value, mask=there)
    value += tl.where(inside % (size + 1) == 0, level, 0.0)
    tl.store(estimates + start + inside, value, mask=there)
