"""How images and kernels lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def lies_by_pixel(t: Tensor) -> bool:
    """Whether images or kernels lie pixel by pixel in memory, the channels of one side by side."""
    pixels = t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
    return pixels and not t.is_contiguous()


def laid(t: Tensor, *, like: Tensor) -> Tensor:
    """Images that lie in memory as others do; a copy unless they do already."""
    if lies_by_pixel(like):
        return t.contiguous(memory_format=torch.channels_last)
    return t.contiguous()


def in_memory(t: Tensor, *, like: Tensor | None = None) -> Tensor:
    """A view with the axes in the order that they have in memory.

    Args:
        t: A tensor that is contiguous, or images or kernels that lie pixel by pixel.
        like: Whose order to take; its own by default.
    """
    return t.movedim(1, -1) if lies_by_pixel(t if like is None else like) else t
