"""Questions about devices that the rest of the code may ask."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ocar.errors import ConfigError


def has_gpu() -> bool:
    """Whether there is a GPU."""
    return torch.cuda.is_available()


OUT_OF_MEMORY = (MemoryError, torch.cuda.OutOfMemoryError)
"""What is raised where memory is missing. The same call may succeed later."""


def choose_device(name: str) -> torch.device:
    """The device ``"cpu"`` or ``"cuda"``, or for ``"auto"`` the GPU if there is one.

    Raises:
        ConfigError: There is no such device.
    """
    if name == "cuda" and not has_gpu():
        raise ConfigError("Invalid device='cuda'. PyTorch finds no CUDA device here.")
    return torch.device("cuda" if has_gpu() and name != "cpu" else "cpu")


def gpu_name(device: torch.device) -> str | None:
    """What a GPU is called; None for another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def own_stream() -> AbstractContextManager[object]:
    """A context in which a thread's work runs on a CUDA stream of its own."""
    if not has_gpu():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream())


def many_images(x: Tensor) -> Tensor:
    """Images in the layout in which a GPU convolves many of them fastest."""
    if x.is_cuda and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x


def adam(parameters: Sequence[nn.Parameter], **options: Any) -> torch.optim.Adam:
    """Adam whose steps can be recorded as a CUDA graph."""
    return torch.optim.Adam(parameters, capturable=parameters[0].is_cuda, **options)
