"""The patches that a convolution sees as one matrix, by one kernel, on a GPU.

PyTorch would pad the images, which are two kernels, and then copy a view of them with six
dimensions, which is slow. It needs Triton, see :mod:`ocar.compiled`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ocar.compiled import kernels
from ocar.models.layout import lies_by_pixel

_PATCHES = 512  # that a program writes, where channels lie apart
_BLOCK = 16  # patches and channels that it writes, where channels lie together
_MOST = 2**31  # numbers that the kernels can count


def patches(x: Tensor, conv: nn.Conv1d | nn.Conv2d, *, by_pixel: bool) -> Tensor | None:
    """All patches of some images; None where there is no kernel that finds them.

    Args:
        x: Images ``(n, channels, height, width)``.
        conv: The layer that they go into.
        by_pixel: Whether a patch is to be in the order pixel by pixel, or channel by channel.

    Returns:
        Shape ``(d_in, n · places)`` channel by channel, ``(n · places, d_in)`` pixel by pixel.
    """
    if not _is_plain(x, conv) or by_pixel != lies_by_pixel(x):
        return None
    compiled = kernels("ocar.curvature.patch_kernels")
    images, channels, *size = x.shape
    side, stride, padding = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    tall, wide = ((length + 2 * padding - side) // stride + 1 for length in size)
    count, length = images * tall * wide, channels * side**2
    if compiled is None or count * length >= _MOST:
        return None
    out = x.new_empty((count, length) if by_pixel else (length, count))
    sizes = channels, *size, tall, wide, stride, padding, count
    with torch.cuda.device_of(x):
        if by_pixel:
            compiled.by_pixel[-(-count // _BLOCK), -(-channels // _BLOCK)](
                *(x, out, *sizes),
                SIDE=side,
                BLOCK=_BLOCK,
                CHANNELS=_BLOCK,
                ALIGNED=channels % 4 == 0,
            )
        else:
            grid = -(-count // _PATCHES), channels
            compiled.by_channel[grid](x, out, *sizes, SIDE=side, BLOCK=_PATCHES)
    return out


def _is_plain(x: Tensor, conv: nn.Conv1d | nn.Conv2d) -> bool:
    """Whether images and layer are such as the kernels are for."""
    if not x.is_cuda or type(conv) is not nn.Conv2d or not isinstance(conv.padding, tuple):
        return False
    return (
        x.dtype == torch.float32
        and (x.is_contiguous() or lies_by_pixel(x))
        and conv.groups == 1
        and conv.dilation == (1, 1)
        and conv.padding_mode == "zeros"
        and conv.kernel_size[0] == conv.kernel_size[1] <= 3
        and conv.stride[0] == conv.stride[1]
        and conv.padding[0] == conv.padding[1]
    )
