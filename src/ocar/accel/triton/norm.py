"""BatchNorm, the addition of a shortcut and ReLU in one kernel; see :mod:`ocar.accel.norm`.

A program takes ``GROUP`` channels of all images, ``count`` numbers of each, and keeps them in
registers. Images are ``(n, channels, h, w)``, channels first with ``area`` locations, or channels
last.

Shortcut, ReLU and running statistics are optional. Masks leave them out: a variant for each case
would mean four times as many kernels to compile.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _places(
    count, channels, area, CHANNELS_LAST: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr
):
    """The channels of a program, the offsets of their numbers, and which of these exist."""
    inside = tl.arange(0, BLOCK)[:, None]
    channel = tl.program_id(0) * GROUP + tl.arange(0, GROUP)[None, :]
    if CHANNELS_LAST:
        where = inside * channels + channel
    else:
        sample = inside // area
        where = (sample * channels + channel) * area + inside - sample * area
    return channel, where, (inside < count) & (channel < channels)


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
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """``relu(weight · (x − mean) · scale + bias + shortcut)``, mean and 1/σ, running statistics."""
    channel, where, there = _places(count, channels, area, CHANNELS_LAST, BLOCK, GROUP)
    own = channel < channels
    value = tl.load(x + where, mask=there, other=0.0)
    center = tl.sum(value, axis=0, keep_dims=True) / count
    value = tl.where(there, value - center, 0.0)
    squares = tl.sum(value * value, axis=0, keep_dims=True)
    size = 1.0 / tl.sqrt(squares / count + eps)
    tl.store(mean + channel, center, mask=own)
    tl.store(scale + channel, size, mask=own)
    tracked = own & (tracks != 0)
    before = tl.load(running_mean + channel, mask=tracked, other=0.0)
    tl.store(running_mean + channel, before + momentum * (center - before), mask=tracked)
    before = tl.load(running_variance + channel, mask=tracked, other=0.0)
    spread = squares / (count - 1)
    tl.store(running_variance + channel, before + momentum * (spread - before), mask=tracked)
    factor = tl.load(weight + channel, mask=own, other=0.0) * size
    value = value * factor + tl.load(bias + channel, mask=own, other=0.0)
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
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Gradients at x, the shortcut, weight and bias; the second axis of the grid is the column."""
    column = tl.program_id(1)
    first = column.to(tl.int64) * count * channels
    channel, where, there = _places(count, channels, area, CHANNELS_LAST, BLOCK, GROUP)
    own = channel < channels
    gradient = tl.load(g + first + where, mask=there, other=0.0)
    passed = tl.load(y + where, mask=there & (relu != 0), other=1.0) > 0
    gradient = tl.where(passed, gradient, 0.0)
    tl.store(gs + first + where, gradient, mask=there & (has_shortcut != 0))
    size = tl.load(scale + channel, mask=own, other=0.0)
    value = tl.load(x + where, mask=there, other=0.0)
    center = tl.load(mean + channel, mask=own, other=0.0)
    hat = tl.where(there, (value - center) * size, 0.0)
    of_bias = tl.sum(gradient, axis=0, keep_dims=True)
    of_weight = tl.sum(gradient * hat, axis=0, keep_dims=True)
    tl.store(gb + column * channels + channel, of_bias, mask=own)
    tl.store(gw + column * channels + channel, of_weight, mask=own)
    value = gradient - of_bias / count - hat * (of_weight / count)
    factor = tl.load(weight + channel, mask=own, other=0.0) * size
    tl.store(gx + first + where, factor * value, mask=there)
