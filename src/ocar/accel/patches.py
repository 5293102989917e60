"""The patches that a convolution sees as one matrix, by one kernel, on a GPU.

PyTorch would pad the images, which are two kernels, and then copy a view of them with six
dimensions, which is slow. It needs Triton, see :mod:`ocar.accel.compiled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ocar.accel.compiled import kernels
from ocar.accel.layout import lies_by_pixel

_PATCHES = 512  # that a program writes, where channels lie apart
_BLOCK, _CHANNELS = 32, 16  # patches and channels that it writes, where channels lie together
_MOST = 2**31  # numbers that the kernels can count
_KERNELS = "ocar.accel.triton.patches"


@dataclass(frozen=True)
class Patches:
    """What a convolution sees of some images.

    Args:
        size: Numbers of a patch.
        count: Patches of all images.
        tall: Rows of patches of an image.
        wide: Patches of a row.
        by_pixel: Whether a patch is in the order pixel by pixel, or channel by channel.
    """

    size: int
    count: int
    tall: int
    wide: int
    by_pixel: bool

    def rows(self, x: Tensor, conv: nn.Conv2d, *, multiple: int = 1) -> Tensor:
        """The patches as columns of a matrix.

        Args:
            x: The images.
            conv: The layer.
            multiple: Fill the rows up with zeros to a multiple of this.

        Returns:
            Shape ``(size, count)``, or more columns.
        """
        compiled = kernels(_KERNELS)
        assert compiled is not None
        length = -(-self.count // multiple) * multiple
        channels, *size = x.shape[1:]
        out = x.new_empty(self.size, length)
        places = self.tall, self.wide, conv.stride[0], int(conv.padding[0]), self.count, length
        with torch.cuda.device_of(x):
            if self.by_pixel:
                compiled.by_pixel[-(-length // _BLOCK), -(-channels // _CHANNELS)](
                    *(x, out, channels, *size, *places),
                    SIDE=conv.kernel_size[0],
                    BLOCK=_BLOCK,
                    CHANNELS=_CHANNELS,
                    ALIGNED=channels % 4 == 0,
                )
            else:
                compiled.by_channel[-(-length // _PATCHES), channels](
                    *(x, out, channels, *size, *places),
                    SIDE=conv.kernel_size[0],
                    BLOCK=_PATCHES,
                )
        return out


def find_patches(x: Tensor, conv: nn.Module, *, by_pixel: bool) -> Patches | None:
    """What a convolution sees; None where there is no kernel that finds it.

    Args:
        x: Images ``(n, channels, height, width)``.
        conv: The layer that they go into.
        by_pixel: Whether a patch is to be in the order pixel by pixel, or channel by channel.
    """
    if not _is_plain(x, conv) or by_pixel != lies_by_pixel(x) or kernels(_KERNELS) is None:
        return None
    conv = cast("nn.Conv2d", conv)
    side, stride, padding = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    tall, wide = ((length + 2 * padding - side) // stride + 1 for length in x.shape[2:])
    found = Patches(x.shape[1] * side**2, x.shape[0] * tall * wide, tall, wide, by_pixel)
    return found if found.size * (found.count + _BLOCK) < _MOST else None


def _is_plain(x: Tensor, conv: nn.Module) -> bool:
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
