"""Gradients of linear layers as products of few rows, on the host.

The gradient of a linear layer is ΔᵀX with one row a sample: X the inputs, Δ the gradients at the
outputs. A batch has fewer samples than a wide layer has outputs; then X·A⁻¹ is cheaper than
(ΔᵀX)·A⁻¹.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ocar.accel.convolution import is_pulling_back

Rows = tuple[Tensor, Tensor]
"""X, ``(m, d_in)``, with a column of ones where there is a bias, and Δ, ``(m, d_out)``."""


class RowRecorder:
    """Records X and Δ of linear layers, by name; on devices where that does not pay, nothing."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self._layers = {
            name: layer
            for name, layer in layers.items()
            if isinstance(layer, nn.Linear) and layer.weight.is_cpu
        }
        self._calls: dict[str, list[list[Tensor | None]]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """For a forward pass; earlier records are dropped."""
        self._calls = {name: [] for name in self._layers}
        handles = [
            layer.register_forward_hook(self._hook(name)) for name, layer in self._layers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Any:
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
        weights. Then the gradient is not that product.
        """
        calls = [(x, g) for x, g in self._calls.get(name, []) if x is not None and g is not None]
        if not calls:
            return None
        layer = self._layers[name]
        x, g = (_joined(parts) for parts in zip(*calls, strict=True))
        trained = layer.bias is not None and layer.bias.requires_grad
        bias = layer.bias.grad if trained else None
        if len(x) >= layer.out_features or (trained and bias is None):
            return None
        if not _is_product(layer.weight.grad, bias, g, x):
            return None
        return (torch.cat([x, x.new_ones(len(x), 1)], dim=1) if trained else x), g


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all calls of a layer."""
    flat = [part.flatten(0, -2) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _is_product(gradient: Tensor | None, bias: Tensor | None, g: Tensor, x: Tensor) -> bool:
    """Whether gradients are gᵀx and gᵀ1, tested by their product with a generic vector."""
    if gradient is None or not gradient.dtype == g.dtype == x.dtype:
        return False
    if g.dtype not in (torch.float32, torch.float64):
        return False
    # numpy: its calls on small arrays cost a tenth of torch's.
    weight, out, into = gradient.numpy(), g.numpy(), x.numpy()
    vector, one = _direction(x.shape[1], out.dtype)
    with np.errstate(all="ignore"):  # NaN and Inf make the comparison false
        found, onto = weight @ vector, into @ vector
        if bias is not None:
            found += one * bias.numpy()
            onto += one
        product = onto @ out
        largest, error = np.abs(product).max(), np.abs(found - product).max()
        return bool(error <= 1000 * np.finfo(out.dtype).eps * largest)


@lru_cache(maxsize=64)
def _direction(size: int, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], float]:
    """A vector in a generic direction, and the weight of a bias beside it."""
    return np.sin(np.arange(size) + 0.5).astype(dtype), float(dtype.type(math.sqrt(size)))
