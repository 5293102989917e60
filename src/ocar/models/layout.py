"""How images and kernels lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def lies_by_pixel(t: Tensor) -> bool:
    """Whether images or kernels lie pixel by pixel in memory, the channels of one side by side."""
    pixels = t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
    return pixels and not t.is_contiguous()


def lay_by_pixel_(model: nn.Module) -> None:
    """Lay the kernels of all 2-d convolutions so, and with them all that goes through them.

    Nothing else about the model changes. A GPU multiplies such images as they are; others it lays
    so first, kernel by kernel.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
