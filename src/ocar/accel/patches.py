"""The patches that a convolution multiplies with its kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.layout import has_square_kernel, is_channels_last, is_dense, laid_out
from ocar.accel.operation import has_triton, launch, operation

Convolution = nn.Conv1d | nn.Conv2d

_PATCHES = 512  # patches that a program writes, for images that are channels first
_BLOCK, _CHANNELS = 32, 16  # patches and channels that a program writes, for channels last
_MOST = 2**31  # numbers that a kernel can count


@operation
def patches(x: Tensor, conv: Convolution) -> Tensor:
    """What a convolution sees at each location, in the order of its weight in memory.

    Args:
        x: Input of the layer, ``(n, channels, [height,] width)``.
        conv: The layer, for its kernel size, stride, padding, dilation and groups.

    Returns:
        Shape ``(n, groups, d_in, L)``.
    """
    samples, groups, area = x.shape[0], conv.groups, math.prod(conv.kernel_size)
    windows = _windows(_padded(x, conv), conv)  # (channels, kernel, n, locations)
    if is_channels_last(conv.weight):
        windows = windows.unflatten(0, (groups, -1)).permute(4, 5, 6, 0, 2, 3, 1)
        rows = windows.reshape(samples, -1, groups, x.shape[1] // groups * area)
        return rows.permute(0, 2, 3, 1)
    rows = windows.reshape(groups, x.shape[1] // groups * area, samples, -1)
    return rows.permute(2, 0, 1, 3)


def _padded(x: Tensor, conv: Convolution) -> Tensor:
    """The padded input in two dimensions."""
    if any(conv._reversed_padding_repeated_twice):
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = functional.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
    return x if isinstance(conv, nn.Conv2d) else x.unsqueeze(2)


def _windows(x: Tensor, conv: Convolution) -> Tensor:
    """What the kernel sees at every location: a view ``(channels, *kernel, n, rows, columns)``.

    With the samples behind the channels one copy gives the rows of a product, all samples and
    locations in a row; ``functional.unfold`` would copy sample by sample.
    """
    sizes = (conv.kernel_size, conv.stride, conv.dilation)
    kernel, stride, dilation = ((1, *size)[-2:] for size in sizes)
    counts = [
        (length - d * (k - 1) - 1) // s + 1
        for length, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    of_sample, of_channel, *of_pixel = x.stride()
    steps = [step * d for step, d in zip(of_pixel, dilation, strict=True)]
    jumps = [step * s for step, s in zip(of_pixel, stride, strict=True)]
    shape = (x.shape[1], *kernel, x.shape[0], *counts)
    return x.as_strided(shape, (of_channel, *steps, of_sample, *jumps), x.storage_offset())


def _fits(x: Tensor, conv: Convolution) -> bool:
    """Whether there is a kernel: for square kernels of up to 3 × 3."""
    if not x.is_cuda or type(conv) is not nn.Conv2d:
        return False
    by_size = x.shape[1] * math.prod(conv.kernel_size) * (x.numel() // x.shape[1] + _BLOCK)
    return (
        x.dtype == torch.float32
        and is_dense(x)
        and has_square_kernel(conv)
        and conv.kernel_size[0] <= 3
        and by_size < _MOST
        and has_triton(x)
    )


@patches.implementation("triton", when=_fits)
def _patches_by_kernel(x: Tensor, conv: Convolution) -> Tensor:
    from ocar.accel.triton import patches as kernels

    assert isinstance(conv.padding, tuple)
    if conv.kernel_size != (1, 1):  # for 1 × 1 both orders are one
        x = laid_out(x, like=conv.weight)
    samples, channels, *size = x.shape
    side, stride, padding = conv.kernel_size[0], conv.stride[0], conv.padding[0]
    tall, wide = ((length + 2 * padding - side) // stride + 1 for length in size)
    count = samples * tall * wide
    out = x.new_empty(channels * side**2, count)
    given = (x, out, channels, *size, tall, wide, stride, padding, count)
    if is_channels_last(x):
        grid = -(-count // _BLOCK), -(-channels // _CHANNELS)
        options = {"BLOCK": _BLOCK, "CHANNELS": _CHANNELS, "ALIGNED": channels % 4 == 0}
        launch(kernels.channels_last, grid, *given, SIDE=side, **options)
    else:
        grid = -(-count // _PATCHES), channels
        launch(kernels.channels_first, grid, *given, SIDE=side, BLOCK=_PATCHES)
    return out.unflatten(1, (samples, -1)).movedim(1, 0).unsqueeze(1)
