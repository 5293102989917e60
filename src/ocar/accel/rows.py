"""Gradients of wide layers as products of few rows, on the host.

The gradient of a linear layer is ΔᵀX with one row a sample: X the inputs, Δ the gradients at the
outputs. A batch has fewer samples than a wide layer has outputs; then X·A⁻¹ is cheaper than
(ΔᵀX)·A⁻¹. So it is with a wide convolution of small images, with one row a sample and location.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ocar.accel.convolution import is_pulling_back
from ocar.accel.layout import weight_matrix
from ocar.accel.patches import patches
from ocar.structure import first_input

Rows = tuple[Tensor, Tensor]
"""X, ``(m, d_in)``, with a column of ones where there is a bias, and Δ, ``(m, d_out)``."""


class RowRecorder:
    """Records X and Δ of linear layers, and of convolutions without groups, by name.

    On devices where that does not pay it records nothing.
    """

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self._layers = {
            name: layer
            for name, layer in layers.items()
            if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d)) and layer.weight.is_cpu
        }
        self._calls: dict[str, list[list[Tensor | None]]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """For a forward pass; earlier records are dropped."""
        self._calls = {name: [] for name in self._layers}
        with ExitStack() as hooks:
            for name, layer in self._layers.items():
                hook = layer.register_forward_hook(self._hook(name), with_kwargs=True)
                hooks.enter_context(hook)
            yield

    def _hook(self, name: str) -> Any:
        def record(module: nn.Module, inputs: Any, named: Any, output: Tensor) -> None:
            if not output.requires_grad:
                return
            call: list[Tensor | None] = [first_input(inputs, named).detach(), None]
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
        if sum(g.numel() for _, g in calls) >= len(layer.weight) ** 2:  # rows · outputs
            return None
        parts = zip(*(_rows(layer, x, g) for x, g in calls), strict=True)
        x, g = (own[0] if len(own) == 1 else torch.cat(own) for own in parts)
        trained = [p for p in (layer.weight, layer.bias) if p is not None and p.requires_grad]
        grads = [p.grad for p in trained if p.grad is not None]
        if len(grads) < len(trained) or not layer.weight.requires_grad:
            return None
        bias = grads[1] if len(grads) == 2 else None
        if not _is_product(weight_matrix(grads[0])[0], bias, g, x):
            return None
        return (x if bias is None else torch.cat([x, x.new_ones(len(x), 1)], dim=1)), g


def _rows(layer: nn.Module, x: Tensor, g: Tensor) -> Rows:
    """The rows of one call of a layer; for a convolution one a sample and location."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return patches(x, layer)[:, 0].mT.flatten(0, 1), g.flatten(2).mT.flatten(0, 1)
    return x.flatten(0, -2), g.flatten(0, -2)


def _is_product(gradient: Tensor, bias: Tensor | None, g: Tensor, x: Tensor) -> bool:
    """Whether gradients are gᵀx and gᵀ1, tested by their product with a generic vector."""
    if not gradient.dtype == g.dtype == x.dtype:
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
    """A vector in a generic direction, and the factor of a bias."""
    return np.sin(np.arange(size) + 0.5).astype(dtype), float(dtype.type(math.sqrt(size)))
