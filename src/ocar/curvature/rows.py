"""Gradients of linear layers as products of few rows, on a CPU.

The gradient of a linear layer is Δᵀ·X, with a row for each sample: X what came in, Δ the
gradient at what went out. A batch has fewer samples than a wide layer has outputs, and then
X·A⁻¹ is cheaper than Δᵀ·X·A⁻¹.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ocar.curvature.convolution import is_pulling_back

Rows = tuple[Tensor, Tensor]
"""X, ``(m, d_in)``, and Δ, ``(m, d_out)``."""


class RowRecorder:
    """Keeps what linear layers see in forward and backward passes.

    Args:
        layers: The layers, by name; those that are no ``nn.Linear`` on a CPU are left alone.
    """

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self._layers = {
            name: layer
            for name, layer in layers.items()
            if isinstance(layer, nn.Linear) and layer.weight.is_cpu
        }
        self._calls: dict[str, list[list[Tensor | None]]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """For a forward pass; what was kept before is forgotten."""
        self._calls = {name: [] for name in self._layers}
        handles = [
            layer.register_forward_hook(self._recorder(name))
            for name, layer in self._layers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _recorder(self, name: str) -> Any:
        def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if not output.requires_grad:
                return
            call: list[Tensor | None] = [inputs[0].detach(), None]
            self._calls[name].append(call)

            def keep(gradient: Tensor) -> None:
                if not is_pulling_back():
                    call[1] = gradient  # of the last backward pass, if there are several

            output.register_hook(keep)

        return record

    def rows(self, name: str) -> Rows | None:
        """X and Δ of a layer, if its gradient is their product and they are few.

        A loss may have a part that no call of the layer has seen, such as a penalty on the
        weights; then there is no such product.
        """
        calls = [(x, g) for x, g in self._calls.get(name, []) if x is not None and g is not None]
        if not calls:
            return None
        layer = self._layers[name]
        x = torch.cat([x.flatten(0, -2) for x, _ in calls])
        g = torch.cat([g.flatten(0, -2) for _, g in calls])
        if len(x) >= layer.out_features or not _is_product(layer.weight.grad, g, x):
            return None
        bias = layer.bias
        if bias is not None and bias.requires_grad and not _are_close(bias.grad, g.sum(0)):
            return None
        return x, g


def _is_product(gradient: Tensor | None, g: Tensor, x: Tensor) -> bool:
    """Whether the gradient is gᵀx, seen by what both do to one vector of no special direction."""
    if gradient is None or gradient.dtype != g.dtype:
        return False
    vector = torch.arange(x.shape[1], dtype=x.dtype).add_(0.5).sin_()
    return _are_close(gradient @ vector, (x @ vector) @ g)


def _are_close(gradient: Tensor | None, product: Tensor) -> bool:
    if gradient is None:
        return False
    error = (product - gradient).abs().max()
    return bool(error <= 1000 * torch.finfo(product.dtype).eps * product.abs().max())
