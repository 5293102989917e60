"""Average and damp many factors at once; see :mod:`ocar.accel.kronecker_triton`.

A row of ``matrices`` is the start of a matrix, its size, the number of its statistic, the number of
the first A of its layer, how many A there are, and the number of its G.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def trace(values, estimates, matrices, traces, count, BLOCK: tl.constexpr):
    """The trace of one matrix: of its average, then of its estimate."""
    matrix = tl.program_id(0)
    start, size = tl.load(matrices + 6 * matrix), tl.load(matrices + 6 * matrix + 1)
    inside = tl.arange(0, BLOCK)
    where, there = start + inside * (size + 1), inside < size
    tl.store(traces + matrix, tl.sum(tl.load(values + where, mask=there, other=0.0), axis=0))
    new = tl.sum(tl.load(estimates + where, mask=there, other=0.0), axis=0)
    tl.store(traces + count + matrix, new)


@triton.jit
def _lerp(old, new, rate):
    """As ``torch.lerp``; the old value if the rate is 0, even where the new one is infinite."""
    small, large = old + rate * (new - old), new - (new - old) * (1.0 - rate)
    return tl.where(rate == 0, old, tl.where(rate < 0.5, small, large))


@triton.jit
def _mean_trace(matrices, traces, rates, dims, ok, matrix, count):
    """Trace over dimension of the new average of a matrix, and its rate."""
    statistic = tl.load(matrices + 6 * matrix + 2)
    rate = tl.where(ok, tl.load(rates + statistic), 0.0).to(tl.float32)
    new = _lerp(tl.load(traces + matrix), tl.load(traces + count + matrix), rate)
    return new / tl.load(dims + statistic).to(tl.float32), rate


@triton.jit
def mix(
    values,
    estimates,
    matrices,
    traces,
    rates,
    dims,
    damping,
    ok,
    chunks,
    count,
    BLOCK: tl.constexpr,
):
    """Take the estimates into the averages, and write the damped averages over the estimates.

    A program takes ``BLOCK`` numbers of one matrix. ``traces`` is what :func:`trace` wrote.
    """
    number = tl.program_id(0)
    matrix, first = tl.load(chunks + 2 * number), tl.load(chunks + 2 * number + 1)
    start, size = tl.load(matrices + 6 * matrix), tl.load(matrices + 6 * matrix + 1)
    taken = tl.load(ok) != 0
    _, rate = _mean_trace(matrices, traces, rates, dims, taken, matrix, count)
    one, parts = tl.load(matrices + 6 * matrix + 3), tl.load(matrices + 6 * matrix + 4)
    g = tl.load(matrices + 6 * matrix + 5)
    mean_g, _ = _mean_trace(matrices, traces, rates, dims, taken, g, count)
    mean_a = 0.0
    for part in range(parts):  # no part has a ratio of its own
        mean, _ = _mean_trace(matrices, traces, rates, dims, taken, one + part, count)
        mean_a += mean / parts
    squared = tl.where(matrix == g, mean_g / mean_a, mean_a / mean_g)
    ratio = tl.where((mean_a > 0) & (mean_g > 0), squared, 1.0)
    level = tl.sqrt(ratio * tl.load(damping).to(tl.float32))
    inside = first + tl.arange(0, BLOCK)
    there = inside < size * size
    old = tl.load(values + start + inside, mask=there)
    value = _lerp(old, tl.load(estimates + start + inside, mask=there), rate)
    tl.store(values + start + inside, value, mask=there)
    value += tl.where(inside % (size + 1) == 0, level, 0.0)
    tl.store(estimates + start + inside, value, mask=there)
