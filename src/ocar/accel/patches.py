"""The patches that a convolution multiplies with its kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.layout import has_square_kernel, is_channels_last, is_dense, laid_out
from ocar.accel.operation import has_triton, launch, operation


@dataclass(frozen=True, eq=False)
class Geometry:
    """How one call convolved; it may differ from what the layer's attributes say."""

    weight: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str  # zeros on both sides, "same" or "valid"
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] = ()  # of a transposed convolution

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """The sides of the kernel."""
        return tuple(self.weight.shape[2:])


Convolution = nn.Conv1d | nn.Conv2d | Geometry

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
    if isinstance(conv, Geometry):
        sides, mode = _zeros(conv), "constant"
    else:
        sides = conv._reversed_padding_repeated_twice
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    if any(sides):
        x = functional.pad(x, sides, mode=mode)
    return x if x.dim() == 4 else x.unsqueeze(2)


def _zeros(conv: Geometry) -> list[int]:
    """The zeros around an input in the order of ``functional.pad``: the last dimension first."""
    if isinstance(conv.padding, tuple):
        return [zeros for zeros in reversed(conv.padding) for _ in range(2)]
    if conv.padding == "same":  # an odd zero comes last
        spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        return [zeros for span in reversed(spans) for zeros in (span // 2, span - span // 2)]
    return []


def transposed_patches(x: Tensor, conv: Geometry) -> Tensor:
    """What a transposed convolution multiplies its kernels with for each output location.

    It is a convolution of the input with zeros between the pixels, by the flipped kernel.

    Args:
        x: Input of the layer, ``(n, channels, [height,] width)``.
        conv: How it convolved; the weight is ``(channels, outputs / groups, *kernel)``.

    Returns:
        Shape ``(n, groups, d_in, L)``. Its inputs have the order (channel, kernel).
    """
    stride = conv.stride
    wide = [(size - 1) * step + 1 for size, step in zip(x.shape[2:], stride, strict=True)]
    spread = x.new_zeros(*x.shape[:2], *wide)
    spread[:, :, *(slice(None, None, step) for step in stride)] = x
    assert not isinstance(conv.padding, str)
    before = [
        d * (k - 1) - p
        for d, k, p in zip(conv.dilation, conv.kernel_size, conv.padding, strict=True)
    ]
    after = [zeros + more for zeros, more in zip(before, conv.output_padding, strict=True)]
    sides = zip(reversed(before), reversed(after), strict=True)
    padded = functional.pad(spread, [zeros for side in sides for zeros in side])
    padded = padded if padded.dim() == 4 else padded.unsqueeze(2)
    one = Geometry(conv.weight, (1,) * len(stride), "valid", conv.dilation, conv.groups)
    windows = _windows(padded, one).flip(1, 2)
    rows = windows.reshape(conv.groups, -1, x.shape[0], math.prod(windows.shape[-2:]))
    return rows.permute(2, 0, 1, 3)


def _windows(x: Tensor, conv: Convolution) -> Tensor:
    """What the kernel sees at every location: a view ``(channels, *kernel, n, rows, columns)``.

    With the samples behind the channels one copy gives the rows of a product, all samples and
    locations in a row; ``functional.unfold`` would copy sample by sample.
    """
    sizes: Sequence[tuple[int, ...]] = (conv.kernel_size, conv.stride, conv.dilation)
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

    assert isinstance(conv, nn.Conv2d)
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
