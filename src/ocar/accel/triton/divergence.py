"""A ResNet's forward pass in train mode; see :mod:`ocar.accel.divergence`.

Images are ``(n, h, w, channels)``. A convolution is a product of matrices: patches, which are never
written, and weights; both are rounded to TF32. The BatchNorm after it needs mean and variance of
each channel over all images. Each program leaves the sum of its part of the output and the sum of
squared distances from its own mean. The reader adds these up, always in the same order. So no
kernel waits for a sum, and the result is the same to the bit each time.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _normalisation(
    raw, channel, count, CHANNELS: tl.constexpr, PARTS: tl.constexpr, SHARE: tl.constexpr
):
    """Scale and shift that normalise some channels.

    ``parts`` has two rows, sums and squares, for each ``SHARE`` of the ``count`` pixels.
    """
    parts, weight, bias, eps = raw[1], raw[2], raw[3], raw[4]
    part = tl.arange(0, PARTS)
    pixels = tl.minimum(tl.maximum(count - part * SHARE, 0), SHARE).to(tl.float32)
    there = (pixels > 0)[:, None] & (channel < CHANNELS)[None, :]
    where = part[:, None] * (2 * CHANNELS) + channel[None, :]
    sums = tl.load(parts + where, mask=there, other=0.0)
    squares = tl.load(parts + where + CHANNELS, mask=there, other=0.0)
    known = channel < CHANNELS
    factor = tl.load(weight + channel, mask=known, other=0.0)
    shift = tl.load(bias + channel, mask=known, other=0.0)
    mean = tl.sum(sums, axis=0) / count
    away = sums * (1.0 / tl.maximum(pixels, 1.0))[:, None] - mean[None, :]
    squares += away * away * pixels[:, None]
    factor = factor / tl.sqrt(tl.sum(squares, axis=0) / count + eps)
    return factor, shift - mean * factor


@triton.jit
def _convolve(
    program,
    x,
    weight,
    y,
    parts,
    count,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    X_CHANNELS_LAST: tl.constexpr,
    W_CHANNELS_LAST: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    TERMS: tl.constexpr,
):
    """One program's part of a convolution: ``PIXELS`` of the ``count`` pixels, ``BLOCK`` channels.

    It adds up ``SPLIT · TERMS`` terms at a time; several warps share the splits.
    """
    PADDING: tl.constexpr = SIDE // 2
    TAPS: tl.constexpr = SIDE * SIDE
    LENGTH: tl.constexpr = TAPS * CHANNELS
    DOWN: tl.constexpr = (HEIGHT + 2 * PADDING - SIDE) // STRIDE + 1
    ACROSS: tl.constexpr = (WIDTH + 2 * PADDING - SIDE) // STRIDE + 1
    BLOCKS: tl.constexpr = (OUTPUTS + BLOCK - 1) // BLOCK
    # Strides of channels and pixels of images, of channels and taps of kernels.
    X_CHANNEL: tl.constexpr = 1 if X_CHANNELS_LAST else HEIGHT * WIDTH
    X_PIXEL: tl.constexpr = CHANNELS if X_CHANNELS_LAST else 1
    W_CHANNEL: tl.constexpr = 1 if W_CHANNELS_LAST else TAPS
    W_TAP: tl.constexpr = CHANNELS if W_CHANNELS_LAST else 1
    tile = program // BLOCKS
    pixel = tile * PIXELS + tl.arange(0, PIXELS)
    output = (program % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    line = pixel // ACROSS
    image = line // DOWN
    top = (line - image * DOWN) * STRIDE - PADDING
    left = (pixel - line * ACROSS) * STRIDE - PADDING
    corner = image * (HEIGHT * WIDTH * CHANNELS) + (top * WIDTH + left) * X_PIXEL
    # Which taps of the kernel are inside the image, one bit each.
    inside = tl.zeros((PIXELS,), tl.int32)
    for number in tl.static_range(TAPS):
        row, column = top + number // SIDE, left + number % SIDE
        within = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        inside |= within.to(tl.int32) << number
    inside = tl.where(pixel < count, inside, 0)
    if SPLIT == 1:
        total = tl.zeros((PIXELS, BLOCK), tl.float32)
    else:
        total = tl.zeros((SPLIT, PIXELS, BLOCK), tl.float32)
    for start in tl.range(0, LENGTH, SPLIT * TERMS):
        if SPLIT == 1:
            term = start + tl.arange(0, TERMS)
        else:
            term = start + tl.arange(0, SPLIT)[:, None] * TERMS + tl.arange(0, TERMS)[None, :]
        tap = term // CHANNELS
        channel = term - tap * CHANNELS
        tap = tl.minimum(tap, TAPS)  # the padding of the last block
        offset = (tap // SIDE * WIDTH + tap % SIDE) * X_PIXEL + channel * X_CHANNEL
        place = channel * W_CHANNEL + tap * W_TAP
        if SPLIT == 1:
            seen = (inside[:, None] >> tap[None, :]) & 1 != 0
            patches = tl.load(x + (corner[:, None] + offset[None, :]), mask=seen, other=0.0)
            weights = tl.load(
                weight + (output[None, :] * LENGTH + place[:, None]),
                mask=(output < OUTPUTS)[None, :] & (term < LENGTH)[:, None],
                other=0.0,
            )
        else:
            seen = (inside[None, :, None] >> tap[:, None, :]) & 1 != 0
            source = x + (corner[None, :, None] + offset[:, None, :])
            patches = tl.load(source, mask=seen, other=0.0)
            weights = tl.load(
                weight + (output[None, None, :] * LENGTH + place[:, :, None]),
                mask=(output < OUTPUTS)[None, None, :] & (term < LENGTH)[:, :, None],
                other=0.0,
            )
        total = tl.dot(patches, weights, total, input_precision="tf32")
    if SPLIT > 1:
        total = tl.sum(total, axis=0)
    there = (pixel < count)[:, None] & (output < OUTPUTS)[None, :]
    tl.store(y + (pixel[:, None] * OUTPUTS + output[None, :]), total, mask=there)
    total = tl.where(there, total, 0.0)
    sums = tl.sum(total, axis=0)
    mean = sums / tl.minimum(count - tile * PIXELS, PIXELS)
    away = tl.where(there, total - mean[None, :], 0.0)
    own = parts + tile * (2 * OUTPUTS) + output
    tl.store(own, sums, mask=output < OUTPUTS)
    tl.store(own + OUTPUTS, tl.sum(away * away, axis=0), mask=output < OUTPUTS)


@triton.jit
def _relay(table, number, relaid, PIECE: tl.constexpr):
    """Write a piece of a weight channels last."""
    row = table + number * 6
    weight = tl.load(row).to(tl.pointer_type(tl.float32))
    start, size = tl.load(row + 1).to(tl.int32), tl.load(row + 2).to(tl.int32)
    channels, taps = tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32)
    inside = tl.load(row + 5).to(tl.int32) + tl.arange(0, PIECE)
    output = inside // (channels * taps)
    place = inside - output * (channels * taps)
    tap = place // channels
    source = output * (channels * taps) + (place - tap * channels) * taps + tap
    value = tl.load(weight + source, mask=inside < size, other=0.0)
    tl.store(relaid + start + inside, value, mask=inside < size)


@triton.jit
def convolve(
    x,
    weight,
    y,
    parts,
    extra,
    count,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    X_CHANNELS_LAST: tl.constexpr,
    W_CHANNELS_LAST: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    TERMS: tl.constexpr,
    EXTRA: tl.constexpr,
    PIECE: tl.constexpr,
):
    """A convolution; further programs do something else, which ``EXTRA`` says.

    1: The 1 × 1 shortcut of the same images. ``extra`` has its weight, ``y`` and ``parts``.
    2: Write the weights of later convolutions channels last. ``extra`` has a table and the place
    for the weights. A row of the table is a piece of a weight: the address of the weight, its start
    in that place, its numbers, its channels, its taps, and the start of the piece.
    """
    BLOCKS: tl.constexpr = (OUTPUTS + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    own = tl.cdiv(count, PIXELS) * BLOCKS
    if program < own:
        _convolve(
            *(program, x, weight, y, parts, count),
            *(HEIGHT, WIDTH, CHANNELS, OUTPUTS, SIDE, STRIDE, X_CHANNELS_LAST, W_CHANNELS_LAST),
            *(PIXELS, BLOCK, SPLIT, TERMS),
        )
    elif EXTRA == 1:
        _convolve(
            *(program - own, x, extra[0], extra[1], extra[2], count),
            *(HEIGHT, WIDTH, CHANNELS, OUTPUTS, 1, STRIDE, True, True),
            *(PIXELS, BLOCK, SPLIT, TERMS),
        )
    elif EXTRA == 2:
        _relay(extra[0], program - own, extra[1], PIECE)


@triton.jit
def _join(
    where,
    there,
    channel,
    raw,
    short,
    count,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    SHARE: tl.constexpr,
    SHORT: tl.constexpr,
):
    """``relu(norm(raw) + shortcut)`` of some pixels; see :func:`join`."""
    value = tl.load(raw[0] + where, mask=there, other=0.0)
    if SHORT > 0:
        other = tl.load(short[0] + where, mask=there, other=0.0)
    factor, shift = _normalisation(raw, channel, count, CHANNELS, PARTS, SHARE)
    value = value * factor[None, :] + shift[None, :]
    if SHORT == 1:
        value += other
    if SHORT == 2:
        factor, shift = _normalisation(short, channel, count, CHANNELS, PARTS, SHARE)
        value += other * factor[None, :] + shift[None, :]
    return tl.where(value < 0, 0.0, value)  # NaN stays


@triton.jit
def join(
    raw,
    short,
    y,
    count,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    SHARE: tl.constexpr,
    SHORT: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``relu(norm(raw) + shortcut)``, of ``PIXELS`` pixels and ``BLOCK`` channels by each program.

    ``raw`` is the output of a convolution, its partial sums, and weight, bias and eps of the
    BatchNorm. ``short`` is the same of a shortcut: ``SHORT`` is 0 if there is none, 1 if its images
    are final, 2 if they are normalised here.
    """
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    where = pixel[:, None] * CHANNELS + channel[None, :]
    there = (pixel < count)[:, None] & (channel < CHANNELS)[None, :]
    value = _join(where, there, channel, raw, short, count, CHANNELS, PARTS, SHARE, SHORT)
    tl.store(y + where, value, mask=there)


@triton.jit
def answer(
    raw,
    short,
    features,
    head_weight,
    head_bias,
    active,
    before,
    divergences,
    count,
    first,
    units,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW_HEIGHT: tl.constexpr,
    WINDOW_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    SHARE: tl.constexpr,
    SHORT: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """From the last convolution to KL(before ‖ now), of one image from the ``first`` on.

    It does the last join, the average pooling, the output layer, the mask of units that stand for
    no class, and the softmax. ``PIXELS`` covers a window, ``BLOCK`` the channels, ``UNITS`` the
    ``units``; ``raw`` and ``short`` as in :func:`join`.
    """
    WINDOWS_DOWN: tl.constexpr = HEIGHT // WINDOW_HEIGHT
    WINDOWS_ACROSS: tl.constexpr = WIDTH // WINDOW_WIDTH
    WINDOWS: tl.constexpr = WINDOWS_DOWN * WINDOWS_ACROSS
    AREA: tl.constexpr = WINDOW_HEIGHT * WINDOW_WIDTH
    LENGTH: tl.constexpr = CHANNELS * WINDOWS
    sample = tl.program_id(0)
    channel = tl.arange(0, BLOCK)
    place = tl.arange(0, PIXELS)
    there = (place < AREA)[:, None] & (channel < CHANNELS)[None, :]
    features += sample * LENGTH
    for window in tl.static_range(WINDOWS):
        row = window // WINDOWS_ACROSS * WINDOW_HEIGHT + place // WINDOW_WIDTH
        column = window % WINDOWS_ACROSS * WINDOW_WIDTH + place % WINDOW_WIDTH
        pixel = ((first + sample) * HEIGHT + row) * WIDTH + column
        value = _join(
            *(pixel[:, None] * CHANNELS + channel[None, :], there, channel, raw, short),
            *(count, CHANNELS, PARTS, SHARE, SHORT),
        )
        mean = tl.sum(tl.where(there, value, 0.0), axis=0) / AREA
        tl.store(features + channel * WINDOWS + window, mean, mask=channel < CHANNELS)
    tl.debug_barrier()
    unit = tl.arange(0, UNITS)
    known = unit < units
    total = tl.zeros((UNITS, CHUNK), tl.float32)
    for start in tl.static_range(0, LENGTH, CHUNK):
        term = start + tl.arange(0, CHUNK)
        weights = tl.load(
            head_weight + (unit[:, None] * LENGTH + term[None, :]),
            mask=known[:, None] & (term < LENGTH)[None, :],
            other=0.0,
        )
        total += weights * tl.load(features + term, mask=term < LENGTH, other=0.0)[None, :]
    logits = tl.sum(total, axis=1) + tl.load(head_bias + unit, mask=known, other=0.0)
    logits = tl.where(tl.load(active + unit, mask=known, other=0) != 0, logits, -1000.0)
    logits = tl.where(known, logits, float("-inf"))
    logits -= tl.max(logits, axis=0)
    after = logits - tl.log(tl.sum(tl.exp(logits), axis=0))
    old = tl.load(before + sample * units + unit, mask=known, other=0.0)
    change = tl.where(known, tl.exp(old) * (old - after), 0.0)
    tl.store(divergences + sample, tl.sum(change, axis=0))
