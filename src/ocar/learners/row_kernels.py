"""Convolutions of images that lie channel by channel, row by row, for Triton.

See :mod:`ocar.learners.row_convolution`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["channels", "outputs", "height", "tiles", "padded"])
def convolve(
    x,
    packed,
    y,
    channels,
    outputs,
    height,
    tiles,
    padded,
    WIDTH: tl.constexpr,
    PIXELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """``y = weight * x`` with kernels of three by three, stride 1 and one pixel of zeros around.

    ``packed`` has for each place of the kernel a matrix of ``padded`` outputs by ``tiles`` times
    ``INPUTS`` inputs, with zeros for those that are not there. A program makes ``PIXELS`` of ``OUTPUTS`` channels: some whole rows
    of one image. For each column of the kernel it adds up what its three lines give, and shifts
    the two outer sums by a pixel: by a product with a matrix that has ones beside its diagonal, and
    zeros where a row ends.
    """
    area = tl.multiple_of(height * WIDTH, [PIXELS])
    inputs = tiles * INPUTS
    start = tl.program_id(0) * PIXELS
    image = start // area
    place = start - image * area
    pixel = tl.arange(0, PIXELS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    before = tl.zeros((OUTPUTS, PIXELS), tl.float32)
    here = tl.zeros((OUTPUTS, PIXELS), tl.float32)
    after = tl.zeros((OUTPUTS, PIXELS), tl.float32)
    for turn in range(0, 3 * tiles):
        tile = turn // 3
        down = turn - 3 * tile
        channel = tile * INPUTS + tl.arange(0, INPUTS)
        row = (place + pixel) // WIDTH + down - 1
        beside = place + (down - 1) * WIDTH + pixel
        seen = tl.load(
            x + ((image * channels + channel)[:, None] * area + beside[None, :]),
            mask=(channel < channels)[:, None] & ((row >= 0) & (row < height))[None, :],
            other=0.0,
        )
        weight = packed + (3 * down * padded + output)[:, None] * inputs + channel[None, :]
        before = tl.dot(tl.load(weight), seen, before, input_precision="tf32")
        here = tl.dot(tl.load(weight + padded * inputs), seen, here, input_precision="tf32")
        after = tl.dot(tl.load(weight + 2 * padded * inputs), seen, after, input_precision="tf32")
    one, other = pixel[:, None], pixel[None, :]
    same_row = one // WIDTH == other // WIDTH
    to_left = ((one == other + 1) & same_row).to(tl.float32)
    to_right = ((one + 1 == other) & same_row).to(tl.float32)
    here = tl.dot(before, to_right, here, input_precision="tf32x3")
    here = tl.dot(after, to_left, here, input_precision="tf32x3")
    target = y + ((image * outputs + output)[:, None] * area + (place + pixel)[None, :])
    tl.store(target, here, mask=(output < outputs)[:, None])
