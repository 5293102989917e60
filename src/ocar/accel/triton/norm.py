"""BatchNorm, the addition of a shortcut and ReLU in one kernel; see :mod:`ocar.accel.norm`.

A program takes ``GROUP`` channels of all images, ``count`` numbers of each, and keeps them in
registers. Images are ``(n, channels, h, w)``, channels first with ``area`` locations, or channels
last.

Channels with too many numbers are in several parts of ``BLOCK``. Another kernel writes the sums of
each part first, ``sums``; then each program takes one part and adds up those of all. ``PARTS`` is a
power of 2, at least the number of parts.

Shortcut, ReLU and running statistics are optional. Masks leave them out: a variant for each case
would mean four times as many kernels to compile.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _places(
    part,
    count,
    channels,
    area,
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The channels of a program, the offsets of their numbers, and which of these exist."""
    inside = part * BLOCK + tl.arange(0, BLOCK)[:, None]
    channel = tl.program_id(0) * GROUP + tl.arange(0, GROUP)[None, :]
    if CHANNELS_LAST:
        where = inside * channels + channel
    else:
        sample = inside // area
        where = (sample * channels + channel) * area + inside - sample * area
    return channel, where, (inside < count) & (channel < channels)


@triton.jit
def _sums(sums, row, channel, channels, parts, PARTS: tl.constexpr):
    """Two sums of each part, ``(PARTS, GROUP)``; ``sums`` is ``(rows, parts, 2, channels)``."""
    part = tl.arange(0, PARTS)[:, None]
    where = sums + ((row * parts + part) * 2) * channels + channel
    there = (part < parts) & (channel < channels)
    return tl.load(where, mask=there, other=0.0), tl.load(where + channels, mask=there, other=0.0)


@triton.jit
def _store_sums(sums, row, part, parts, channel, channels, first, second):
    where = sums + ((row * parts + part) * 2) * channels + channel
    tl.store(where, first, mask=channel < channels)
    tl.store(where + channels, second, mask=channel < channels)


@triton.jit
def moments(
    x,
    sums,
    count,
    channels,
    area,
    parts,
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The mean of each part, and the sum of squares around it; the grid is (groups, parts)."""
    part = tl.program_id(1)
    channel, where, there = _places(part, count, channels, area, CHANNELS_LAST, BLOCK, GROUP)
    value = tl.load(x + where, mask=there, other=0.0)
    center = tl.sum(value, axis=0, keep_dims=True) / tl.minimum(count - part * BLOCK, BLOCK)
    value = tl.where(there, value - center, 0.0)
    squares = tl.sum(value * value, axis=0, keep_dims=True)
    _store_sums(sums, 0, part, parts, channel, channels, center, squares)


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
    sums,
    count,
    channels,
    area,
    parts,
    momentum,
    eps,
    has_shortcut,
    relu,
    tracks,
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,
):
    """``relu(weight · (x − mean) · scale + bias + shortcut)``, mean and 1/σ, running statistics.

    The grid is (groups, parts).
    """
    part = tl.program_id(1)
    channel, where, there = _places(part, count, channels, area, CHANNELS_LAST, BLOCK, GROUP)
    own = channel < channels
    value = tl.load(x + where, mask=there, other=0.0)
    if PARTS == 1:
        center = tl.sum(value, axis=0, keep_dims=True) / count
        value = tl.where(there, value - center, 0.0)
        squares = tl.sum(value * value, axis=0, keep_dims=True)
    else:
        means, spreads = _sums(sums, 0, channel, channels, parts, PARTS)
        numbers = tl.minimum(count - tl.arange(0, PARTS)[:, None] * BLOCK, BLOCK)
        numbers = tl.maximum(numbers, 0).to(tl.float32)  # in each part
        center = tl.sum(numbers * means, axis=0, keep_dims=True) / count
        shift = means - center
        squares = tl.sum(spreads + numbers * shift * shift, axis=0, keep_dims=True)
        value = tl.where(there, value - center, 0.0)
    size = 1.0 / tl.sqrt(squares / count + eps)
    once = own & (part == 0)
    tl.store(mean + channel, center, mask=once)
    tl.store(scale + channel, size, mask=once)
    tracked = once & (tracks != 0)
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


@triton.jit
def _gradient(g, x, y, mean, scale, where, there, channel, own, relu):
    """The gradient before the ReLU, and the normalised input."""
    gradient = tl.load(g + where, mask=there, other=0.0)
    passed = tl.load(y + where, mask=there & (relu != 0), other=1.0) > 0
    gradient = tl.where(passed, gradient, 0.0)
    size = tl.load(scale + channel, mask=own, other=0.0)
    value = tl.load(x + where, mask=there, other=0.0)
    center = tl.load(mean + channel, mask=own, other=0.0)
    return gradient, tl.where(there, (value - center) * size, 0.0), size


@triton.jit(do_not_specialize=["relu"])
def gradient_sums(
    g,
    x,
    y,
    mean,
    scale,
    sums,
    count,
    channels,
    area,
    parts,
    relu,
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The gradients of bias and weight in each part; the grid is (groups, columns, parts)."""
    column, part = tl.program_id(1), tl.program_id(2)
    g += column.to(tl.int64) * count * channels
    channel, where, there = _places(part, count, channels, area, CHANNELS_LAST, BLOCK, GROUP)
    own = channel < channels
    gradient, hat, _ = _gradient(g, x, y, mean, scale, where, there, channel, own, relu)
    of_bias = tl.sum(gradient, axis=0, keep_dims=True)
    of_weight = tl.sum(gradient * hat, axis=0, keep_dims=True)
    _store_sums(sums, column, part, parts, channel, channels, of_bias, of_weight)


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
    sums,
    count,
    channels,
    area,
    parts,
    has_shortcut,
    relu,
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Gradients at x, the shortcut, weight and bias; the grid is (groups, columns, parts)."""
    column, part = tl.program_id(1), tl.program_id(2)
    first = column.to(tl.int64) * count * channels
    channel, where, there = _places(part, count, channels, area, CHANNELS_LAST, BLOCK, GROUP)
    own = channel < channels
    gradient, hat, size = _gradient(g + first, x, y, mean, scale, where, there, channel, own, relu)
    tl.store(gs + first + where, gradient, mask=there & (has_shortcut != 0))
    if PARTS == 1:
        of_bias = tl.sum(gradient, axis=0, keep_dims=True)
        of_weight = tl.sum(gradient * hat, axis=0, keep_dims=True)
    else:
        of_biases, of_weights = _sums(sums, column, channel, channels, parts, PARTS)
        of_bias = tl.sum(of_biases, axis=0, keep_dims=True)
        of_weight = tl.sum(of_weights, axis=0, keep_dims=True)
    once = own & (part == 0)
    tl.store(gb + column * channels + channel, of_bias, mask=once)
    tl.store(gw + column * channels + channel, of_weight, mask=once)
    value = gradient - of_bias / count - hat * (of_weight / count)
    factor = tl.load(weight + channel, mask=own, other=0.0) * size
    tl.store(gx + first + where, factor * value, mask=there)
