"""Convolutions of images with few channels, for Triton; see :mod:`ocar.accel.folded`.

Images lie in memory as ``(n, h, w, channels)``, weights as ``(outputs, side, side, channels)``, in
half precision, with a multiple of 8 channels: 8 numbers are read together, and all of them are
inside the image or none. The convolution is a product of matrices, the patches of the images, which
are never written, and the weights; sums are in single precision.

A patch shares most of its numbers with its neighbours. They are in the same program, so that all
but the first reading finds them in the L1 cache. Asynchronous copies would pass it by, which is why
there is one stage and not several.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["count"])
def convolution(
    x,
    weight,
    bias,
    shortcut,
    y,
    count,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    RELU: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCK: tl.constexpr,
    TERMS: tl.constexpr,
):
    """``relu(weight * x + bias + shortcut)``; bias and shortcut may be None.

    A program makes ``PIXELS`` of the ``count`` pixels of all results, ``BLOCK`` channels of each.
    It adds up ``TERMS`` terms at a time.
    """
    LENGTH: tl.constexpr = SIDE * SIDE * CHANNELS
    DOWN: tl.constexpr = (HEIGHT + 2 * PADDING - SIDE) // STRIDE + 1
    ACROSS: tl.constexpr = (WIDTH + 2 * PADDING - SIDE) // STRIDE + 1
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    line = pixel // ACROSS
    image = line // DOWN
    top = (line - image * DOWN) * STRIDE - PADDING
    left = (pixel - line * ACROSS) * STRIDE - PADDING
    corner = ((image * HEIGHT + top) * WIDTH + left) * CHANNELS
    top = tl.where(pixel < count, top, HEIGHT)  # of what is not there nothing is in the image
    total = tl.zeros((PIXELS, BLOCK), tl.float32)
    for start in tl.range(0, LENGTH, TERMS):
        term = start + tl.arange(0, TERMS)
        place = term // CHANNELS
        down = place // SIDE
        across = place - down * SIDE
        offset = (down * WIDTH + across) * CHANNELS + term % CHANNELS
        row, column = top[:, None] + down[None, :], left[:, None] + across[None, :]
        inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        patches = tl.load(
            x + (corner[:, None] + offset[None, :]),
            mask=inside & (term < LENGTH)[None, :],
            other=0.0,
        )
        weights = tl.load(
            weight + (output[:, None] * LENGTH + term[None, :]),
            mask=(output < OUTPUTS)[:, None] & (term < LENGTH)[None, :],
            other=0.0,
        )
        total = tl.dot(patches, weights.T, total)
    if bias is not None:
        shift = tl.load(bias + output, mask=output < OUTPUTS, other=0.0)
        total += shift[None, :].to(tl.float32)
    where = pixel[:, None] * OUTPUTS + output[None, :]
    there = (pixel < count)[:, None] & (output < OUTPUTS)[None, :]
    if shortcut is not None:
        total += tl.load(shortcut + where, mask=there, other=0.0).to(tl.float32)
    if RELU:
        total = tl.where(total < 0, 0.0, total)  # NaN stays
    tl.store(y + where, total.to(y.dtype.element_ty), mask=there)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    shortcut: Tensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    relu: bool = False,
    pixels: int = 128,
    terms: int = 32,
    warps: int = 4,
) -> Tensor:
    """``relu(conv2d(x, weight) + bias + shortcut)``; all that has four dimensions is channels last.

    Args:
        x: Images ``(n, channels, h, w)`` in half precision, with a multiple of 8 channels.
        weight: ``(outputs, channels, side, side)``.
        bias: ``(outputs,)``.
        shortcut: Of the shape of the result.
        stride: Both ways.
        padding: Zeros on each side.
        relu: Whether what is negative becomes zero.
        pixels: How many of the result a program makes.
        terms: How many it adds up at a time.
        warps: How many share the work of a program.
    """
    n, channels, height, width = x.shape
    outputs, _, side, _ = weight.shape
    shape = (n, outputs, *((size + 2 * padding - side) // stride + 1 for size in (height, width)))
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    count = y.numel() // outputs
    block = min(64, max(16, triton.next_power_of_2(outputs)))
    with torch.cuda.device_of(x):
        convolution[triton.cdiv(count, pixels), triton.cdiv(outputs, block)](
            *(x, weight, bias, shortcut, y, count),
            *(height, width, channels, outputs, side, stride, padding, relu),
            *(pixels, block, terms),
            num_warps=warps,
            num_stages=1,
        )
    return y
