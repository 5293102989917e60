"""The patches that a convolution sees as one matrix; see :mod:`ocar.accel.patches`."""

from __future__ import annotations

import triton
import triton.language as tl

_SIZES = ("channels", "height", "width", "tall", "wide", "stride", "padding", "count")


@triton.jit
def _corner(patch, tall, wide, stride, padding):
    """The image of a patch, and its top left corner there."""
    area = tall * wide
    image = patch // area
    place = patch - image * area
    line = place // wide
    return image, line * stride - padding, (place - line * wide) * stride - padding


@triton.jit(do_not_specialize=_SIZES)
def channels_first(
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
    SIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows ``channel · SIDE² + tap``, one number for each of the ``count`` patches.

    A program writes one channel of ``BLOCK`` patches.
    """
    patch = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    image, top, left = _corner(patch, tall, wide, stride, padding)
    source = x + ((image * channels + channel) * height + top) * width + left
    target = out + channel * (SIDE * SIDE) * count + patch
    for down in tl.static_range(SIDE):
        inside = (patch < count) & (top + down >= 0) & (top + down < height)
        for across in tl.static_range(SIDE):
            within = inside & (left + across >= 0) & (left + across < width)
            value = tl.load(source + down * width + across, mask=within, other=0.0)
            tl.store(target + (down * SIDE + across) * count, value, mask=patch < count)


@triton.jit(do_not_specialize=_SIZES)
def channels_last(
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
    SIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Rows ``tap · channels + channel``, one number for each of the ``count`` patches.

    A program writes ``CHANNELS`` channels of ``BLOCK`` patches.
    """
    if ALIGNED:
        channels = tl.multiple_of(channels, [4])
    patch = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    image, top, left = _corner(patch, tall, wide, stride, padding)
    source = x + (((image * height + top) * width + left) * channels)[:, None] + channel
    target = out + channel * count + patch[:, None]
    there = (patch < count)[:, None] & (channel < channels)
    for down in tl.static_range(SIDE):
        inside = (patch < count) & (top + down >= 0) & (top + down < height)
        for across in tl.static_range(SIDE):
            within = inside & (left + across >= 0) & (left + across < width)
            shift = (down * width + across) * channels
            value = tl.load(source + shift, mask=there & within[:, None], other=0.0)
            tl.store(target + (down * SIDE + across) * channels * count, value, mask=there)
