"""BatchNorm with what follows it in one kernel, for Triton; see :mod:`ocar.models.fused_norm`.

Images are ``(n, channels, h, w)``, contiguous, and a program takes one channel of them: ``count``
numbers, ``area`` of each sample side by side, which it keeps in registers.
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


@triton.jit
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
    HAS_SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    TRACKS: tl.constexpr,
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
    if TRACKS:
        before = tl.load(running_mean + channel)
        tl.store(running_mean + channel, before + momentum * (center - before))
        before = tl.load(running_variance + channel)
        spread = squares / (count - 1)
        tl.store(running_variance + channel, before + momentum * (spread - before))
    value = value * (tl.load(weight + channel) * size) + tl.load(bias + channel)
    if HAS_SHORTCUT:
        value += tl.load(shortcut + where, mask=there, other=0.0)
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # NaN stays
    tl.store(y + where, value, mask=there)


@triton.jit
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
    HAS_SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gradients at x, the shortcut, weight and bias; one column of them for each second number."""
    channel, column = tl.program_id(0), tl.program_id(1)
    first = column.to(tl.int64) * count * channels
    where, there = places(channel, count, channels, area, BLOCK)
    gradient = tl.load(g + first + where, mask=there, other=0.0)
    if RELU:
        gradient = tl.where(tl.load(y + where, mask=there, other=0.0) > 0, gradient, 0.0)
    if HAS_SHORTCUT:
        tl.store(gs + first + where, gradient, mask=there)
    size = tl.load(scale + channel)
    value = tl.load(x + where, mask=there, other=0.0)
    hat = tl.where(there, (value - tl.load(mean + channel)) * size, 0.0)
    of_bias, of_weight = tl.sum(gradient, axis=0), tl.sum(gradient * hat, axis=0)
    tl.store(gb + column * channels + channel, of_bias)
    tl.store(gw + column * channels + channel, of_weight)
    value = gradient - of_bias / count - hat * (of_weight / count)
    tl.store(gx + first + where, tl.load(weight + channel) * size * value, mask=there)
