"""Forward passes whose backward pass is fast: of one loss, or of several columns at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ocar.accel.convolution import FlippedKernels, fast_backward
from ocar.accel.norm import batched_norms
from ocar.accel.streams import one_stream
from ocar.accel.weight_gradients import WeightGradients


class Backward:
    """Runs the backward passes of a model, on a GPU with faster convolutions."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._flipped = FlippedKernels(model)
        self._weights = WeightGradients(model)
        self._is_special = next(model.parameters()).is_cuda

    def forward(self) -> AbstractContextManager[None]:
        """For the forward pass of the loss."""
        if not self._is_special:
            return nullcontext()
        return fast_backward(self._model.modules(), flipped=self._flipped, weights=self._weights)

    def __call__(self, loss: Tensor) -> None:
        """Add the gradients of a loss to ``.grad`` of all parameters."""
        if not self._is_special:
            loss.backward()
            return
        self._weights.begin()
        try:
            loss.backward()
        finally:
            self._weights.end()


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


@contextmanager
def without_warnings_of_batching() -> Iterator[None]:
    """PyTorch does not warn that it takes the columns of an operation one by one.

    Attention has no batched backward pass. Nobody can do anything about it, and it costs little:
    there are few columns.
    """
    functorch: Any = torch._C._functorch
    functorch._set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_warning_enabled(True)
