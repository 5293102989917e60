"""BatchNorm with what follows it in one kernel, for Triton; see :mod:`ocar.models.fused_norm`.

Images are ``(n, channels, h, w)``, contiguous, and a program takes one channel of them: ``count``
numbers, ``area`` of each sample side by side, which it keeps in registers.

What may be left out, a shortcut, the ReLU, running statistics, is left out by masks: a kernel for
each case would have to be compiled, four times as many.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def places(channel, count, channels, area, BLOCK: tl.constexpr):
    """Where the numbers of a channel are, and which of them there are."""
    inside = tl.arange(0, BLOCK)
    sample = inside // area
    return (sample * channels + channel) * area + inside - sample * area, inside < count


@triton.jit(do_not_specialize=["has_shortcut", "relu", "tracks"])
def forward(
    x,
    shortcut,
    y,
    weight,
    bias,
    mean,
    scale,
    running_mean,
    running_variance,
    count,
    channels,
    area,
    momentum,
    eps,
    has_shortcut,
    relu,
    tracks,
    BLOCK: tl.constexpr,
):
    """``relu(weight · (x − mean) · scale + bias + shortcut)``, mean and 1/σ, running statistics."""
    channel = tl.program_id(0)
    where, there = places(channel, count, channels, area, BLOCK)
    value = tl.load(x + where, mask=there, other=0.0)
    center = tl.sum(value, axis=0) / count
    value = tl.where(there, value - center, 0.0)
    squares = tl.sum(value * value, axis=0)
    size = 1.0 / tl.sqrt(squares / count + eps)
    tl.store(mean + channel, center)
    tl.store(scale + channel, size)
    tracked = tracks != 0
    before = tl.load(running_mean + channel, mask=tracked, other=0.0)
    tl.store(running_mean + channel, before + momentum * (center - before), mask=tracked)
    before = tl.load(running_variance + channel, mask=tracked, other=0.0)
    spread = squares / (count - 1)
    tl.store(running_variance + channel, before + momentum * (spread - before), mask=tracked)
    value = value * (tl.load(weight + channel) * size) + tl.load(bias + channel)
    value += tl.load(shortcut + where, mask=there & (has_shortcut != 0), other=0.0)
    value = tl.where((value < 0) & (relu != 0), 0.0, value)  # NaN stays
    tl.store(y + where, value, mask=there)


@triton.jit(do_not_specialize=["has_shortcut", "relu"])
def backward(
    g,
    x,
    y,
    weight,
    mean,
    scale,
    gx,
    gs,
    gw,
    gb,
    count,
    channels,
    area,
    has_shortcut,
    relu,
    BLOCK: tl.constexpr,
):
    """Gradients at x, the shortcut, weight and bias; one column of them for each second number."""
    channel, column = tl.program_id(0), tl.program_id(1)
    first = column.to(tl.int64) * count * channels
    where, there = places(channel, count, channels, area, BLOCK)
    gradient = tl.load(g + first + where, mask=there, other=0.0)
    passed = tl.load(y + where, mask=there & (relu != 0), other=1.0) > 0
    gradient = tl.where(passed, gradient, 0.0)
    tl.store(gs + first + where, gradient, mask=there & (has_shortcut != 0))
    size = tl.load(scale + channel)
    value = tl.load(x + where, mask=there, other=0.0)
    hat = tl.where(there, (value - tl.load(mean + channel)) * size, 0.0)
    of_bias, of_weight = tl.sum(gradient, axis=0), tl.sum(gradient * hat, axis=0)
    tl.store(gb + column * channels + channel, of_bias)
    tl.store(gw + column * channels + channel, of_weight)
    value = gradient - of_bias / count - hat * (of_weight / count)
    tl.store(gx + first + where, tl.load(weight + channel) * size * value, mask=there)
