"""BatchNorm with what follows it in one kernel, for Triton; see :mod:`ocar.accel.norm`.

A program takes ``GROUP`` channels of all images, ``count`` numbers of each, and keeps them in
registers. Images are ``(n, channels, h, w)``, and lie in memory channel by channel, the ``area``
numbers of one side by side, or pixel by pixel.

What may be left out, a shortcut, the ReLU, running statistics, is left out by masks: a kernel for
each case would have to be compiled, four times as many.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def places(count, channels, area, BY_PIXEL: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """Which channels a program takes, where their numbers are, and which of them there are."""
    inside = tl.arange(0, BLOCK)[:, None]
    channel = tl.program_id(0) * GROUP + tl.arange(0, GROUP)[None, :]
    if BY_PIXEL:
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
    BY_PIXEL: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """``relu(weight · (x − mean) · scale + bias + shortcut)``, mean and 1/σ, running statistics."""
    channel, where, there = places(count, channels, area, BY_PIXEL, BLOCK, GROUP)
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
    BY_PIXEL: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Gradients at x, the shortcut, weight and bias; one column of them for each second number."""
    column = tl.program_id(1)
    first = column.to(tl.int64) * count * channels
    channel, where, there = places(count, channels, area, BY_PIXEL, BLOCK, GROUP)
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
