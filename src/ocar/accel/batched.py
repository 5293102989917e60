"""Forward passes that several columns are pulled back through at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from ocar.accel.convolution import fast_backward
from ocar.accel.norm import batched_norms
from ocar.accel.streams import one_stream


@contextmanager
def batched_backward(model: nn.Module) -> Iterator[None]:
    """For a forward pass: its backward pass for many columns at once is fast."""
    modules = list(model.modules())
    with ExitStack() as stack:
        stack.enter_context(one_stream())
        stack.enter_context(batched_norms(modules))
        if all(p.is_cpu for p in model.parameters()):  # on a GPU :class:`Backward` does it
            stack.enter_context(fast_backward(modules))
        yield


def start_backward_thread(like: Tensor) -> None:
    """Start PyTorch's thread for backward passes on a device.

    If its first operation is a product of matrices, cuBLAS warns that it had to initialise itself.
    """
    if like.is_cuda:
        _start(like.device)


@functools.cache
def _start(device: torch.device) -> None:
    with torch.enable_grad():
        torch.ones((), device=device, requires_grad=True).exp().backward()
