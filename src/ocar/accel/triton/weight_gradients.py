"""Gradients of the weights of several convolutions; see :mod:`ocar.accel.weight_gradients`.

The gradient of a weight is a sum over the pixels of all outputs, of the input at one tap of the
kernel times the gradient at the output.

``addresses`` has those of the inputs of each layer and of the gradients at its outputs, a row of
``layers`` its sizes. A row of ``programs`` is the layer, the tile of outputs, the tile of inputs
and the row of the kernel that a program is for. It adds up a share of the pixels. Each share has a
result of its own, ``total`` numbers for the weights of all layers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _begin(addresses, layers, programs, LAYERS: tl.constexpr, TILE: tl.constexpr):
    """What a program is for: row of the layer, inputs, gradients, outputs, channels, kernel row."""
    program = programs + tl.program_id(0) * 4
    number = tl.load(program)
    x, g = addresses[0], addresses[1]
    for other in tl.static_range(1, LAYERS):
        x = tl.where(number == other, addresses[2 * other], x)
        g = tl.where(number == other, addresses[2 * other + 1], g)
    x = tl.multiple_of(x.to(tl.pointer_type(tl.float32)), [16])
    g = tl.multiple_of(g.to(tl.pointer_type(tl.float32)), [16])
    output = tl.load(program + 1) * TILE + tl.arange(0, TILE)
    channel = tl.load(program + 2) * TILE + tl.arange(0, TILE)
    return layers + number * 14, x, g, output, channel, tl.load(program + 3)


@triton.jit
def _store(out, layer, output, channel, down, side, first, second, third):
    """Write the sums for one row of a kernel."""
    outputs, channels = tl.load(layer + 3), tl.load(layer)
    where = output[:, None] * tl.load(layer + 10) + channel[None, :] * tl.load(layer + 11)
    where += tl.load(layer + 9) + down * tl.load(layer + 12)
    across = tl.load(layer + 13)
    there = (output < outputs)[:, None] & (channel < channels)[None, :]
    tl.store(out + where, first, mask=there)
    tl.store(out + where + across, second, mask=there & (side > 1))
    tl.store(out + where + 2 * across, third, mask=there & (side > 2))


@triton.jit(do_not_specialize=["images", "share", "total"])
def multiply_channels_last(
    addresses,
    layers,
    programs,
    out,
    images,
    share,
    total,
    LAYERS: tl.constexpr,
    TILE: tl.constexpr,
    PIXELS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Images that are channels last, kernels of up to 3 × 3. A share is a number of images."""
    layer, x, g, output, channel, down = _begin(addresses, layers, programs, LAYERS, TILE)
    channels, height, width = tl.load(layer), tl.load(layer + 1), tl.load(layer + 2)
    outputs, tall, wide = tl.load(layer + 3), tl.load(layer + 4), tl.load(layer + 5)
    side, stride, padding = tl.load(layer + 6), tl.load(layer + 7), tl.load(layer + 8)
    if ALIGNED:
        channels, outputs = tl.multiple_of(channels, [4]), tl.multiple_of(outputs, [4])
    area = tall * wide
    chunk = tl.program_id(1)
    begin, end = chunk * share * area, tl.minimum((chunk + 1) * share, images) * area
    known = (channel < channels)[None, :]
    first = tl.zeros((TILE, TILE), tl.float32)
    second = tl.zeros((TILE, TILE), tl.float32)
    third = tl.zeros((TILE, TILE), tl.float32)
    for start in range(begin, end, PIXELS):
        pixel = start + tl.arange(0, PIXELS)
        image = pixel // area
        place = pixel - image * area
        line = place // wide
        row = line * stride - padding + down
        column = (place - line * wide) * stride - padding
        inside = (pixel < end) & (row >= 0) & (row < height)
        taken = tl.load(
            g + (pixel[:, None] * outputs + output[None, :]),
            mask=(pixel < end)[:, None] & (output < outputs)[None, :],
            other=0.0,
        ).T
        source = x + (((image * height + row) * width + column) * channels)[:, None]
        source += channel[None, :]
        left = inside & (column >= 0) & (column < width)
        middle = inside & (column >= -1) & (column < width - 1) & (side > 1)
        right = inside & (column >= -2) & (column < width - 2) & (side > 2)
        seen = tl.load(source, mask=left[:, None] & known, other=0.0)
        first = tl.dot(taken, seen, first, input_precision="tf32")
        seen = tl.load(source + channels, mask=middle[:, None] & known, other=0.0)
        second = tl.dot(taken, seen, second, input_precision="tf32")
        seen = tl.load(source + 2 * channels, mask=right[:, None] & known, other=0.0)
        third = tl.dot(taken, seen, third, input_precision="tf32")
    out += chunk.to(tl.int64) * total
    _store(out, layer, output, channel, down, side, first, second, third)


@triton.jit(do_not_specialize=["blocks", "share", "total"])
def multiply_channels_first(
    addresses,
    layers,
    programs,
    out,
    blocks,
    share,
    total,
    LAYERS: tl.constexpr,
    TILE: tl.constexpr,
    PIXELS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Images that are channels first, kernels of 3 × 3 with stride 1.

    A share is a number of the ``blocks`` of ``PIXELS``, each some whole rows of ``WIDTH`` pixels of
    one image. Inputs and gradients are read in the order of memory, many numbers together. For the
    left and the right column of a kernel the gradients are shifted by one pixel: by a product with
    a matrix with ones next to its diagonal, and zeros where a row ends.
    """
    layer, x, g, output, channel, down = _begin(addresses, layers, programs, LAYERS, TILE)
    channels, height, outputs = tl.load(layer), tl.load(layer + 1), tl.load(layer + 3)
    area = tl.multiple_of(height * WIDTH, [PIXELS])
    pixel = tl.arange(0, PIXELS)
    one, other = pixel[:, None], pixel[None, :]
    same_row = one // WIDTH == other // WIDTH
    to_left = ((one == other + 1) & same_row).to(tl.float32)
    to_right = ((one + 1 == other) & same_row).to(tl.float32)
    chunk = tl.program_id(1)
    first = tl.zeros((TILE, TILE), tl.float32)
    second = tl.zeros((TILE, TILE), tl.float32)
    third = tl.zeros((TILE, TILE), tl.float32)
    for block in range(chunk * share, tl.minimum((chunk + 1) * share, blocks)):
        start = block * PIXELS
        image = start // area
        place = start - image * area
        row = place // WIDTH + pixel // WIDTH + down - 1
        taken = tl.load(
            g + ((image * outputs + output)[:, None] * area + (place + pixel)[None, :]),
            mask=(output < outputs)[:, None],
            other=0.0,
        )
        beside = place + (down - 1) * WIDTH + pixel
        seen = tl.load(
            x + ((image * channels + channel)[:, None] * area + beside[None, :]),
            mask=(channel < channels)[:, None] & ((row >= 0) & (row < height))[None, :],
            other=0.0,
        ).T
        left = tl.dot(taken, to_left, input_precision="tf32")
        right = tl.dot(taken, to_right, input_precision="tf32")
        first = tl.dot(left, seen, first, input_precision="tf32")
        second = tl.dot(taken, seen, second, input_precision="tf32")
        third = tl.dot(right, seen, third, input_precision="tf32")
    out += chunk.to(tl.int64) * total
    _store(out, layer, output, channel, down, 3, first, second, third)
