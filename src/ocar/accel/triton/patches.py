"""The patches that a convolution sees, for Triton; see :mod:`ocar.accel.patches`."""

from __future__ import annotations

import triton
import triton.language as tl

_SIZES = ("channels", "height", "width", "tall", "wide", "stride", "padding", "count", "length")


@triton.jit(do_not_specialize=_SIZES)
def by_channel(
    x,
    out,
    channels,
    height,
    width,
    tall,
    wide,
    stride,
    padding,
    count,
    length,
    SIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows ``channel · SIDE² + place in the kernel``, for images that lie channel by channel.

    Each has ``length`` numbers, one for each of the ``count`` patches, and then zeros. A program
    writes one channel of ``BLOCK`` patches.
    """
    patch = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    area = tall * wide
    image = patch // area
    place = patch - image * area
    line = place // wide
    top = line * stride - padding
    left = (place - line * wide) * stride - padding
    source = x + ((image * channels + channel) * height + top) * width + left
    target = out + channel * (SIDE * SIDE) * length + patch
    for down in tl.static_range(SIDE):
        inside = (patch < count) & (top + down >= 0) & (top + down < height)
        for across in tl.static_range(SIDE):
            within = inside & (left + across >= 0) & (left + across < width)
            value = tl.load(source + down * width + across, mask=within, other=0.0)
            tl.store(target + (down * SIDE + across) * length, value, mask=patch < length)


@triton.jit(do_not_specialize=_SIZES)
def by_pixel(
    x,
    out,
    channels,
    height,
    width,
    tall,
    wide,
    stride,
    padding,
    count,
    length,
    SIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Rows ``place in the kernel · channels + channel``, for images that lie pixel by pixel.

    As above, but a program writes ``CHANNELS`` channels of ``BLOCK`` patches.
    """
    if ALIGNED:
        channels = tl.multiple_of(channels, [4])
    patch = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    area = tall * wide
    image = patch // area
    place = patch - image * area
    line = place // wide
    top = line * stride - padding
    left = (place - line * wide) * stride - padding
    source = x + (((image * height + top) * width + left) * channels)[:, None] + channel
    target = out + channel * length + patch[:, None]
    there = (patch < length)[:, None] & (channel < channels)
    for down in tl.static_range(SIDE):
        inside = (patch < count) & (top + down >= 0) & (top + down < height)
        for across in tl.static_range(SIDE):
            within = inside & (left + across >= 0) & (left + across < width)
            shift = (down * width + across) * channels
            value = tl.load(source + shift, mask=there & within[:, None], other=0.0)
            tl.store(target + (down * SIDE + across) * channels * length, value, mask=there)
