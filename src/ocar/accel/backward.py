"""The backward pass of a gradient step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ocar.accel.convolution import FlippedKernels, fast_backward
from ocar.accel.weight_gradients import WeightGradients


class Backward:
    """Runs the backward passes of a model, on a GPU with faster convolutions.

    Args:
        model: Any module.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._flipped = FlippedKernels(model)
        self._weights = WeightGradients(model)
        self._is_special = next(model.parameters()).is_cuda

    @contextmanager
    def forward(self) -> Iterator[None]:
        """For the forward pass of the loss."""
        if not self._is_special:
            yield
            return
        with fast_backward(self._model.modules(), flipped=self._flipped, weights=self._weights):
            yield

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
