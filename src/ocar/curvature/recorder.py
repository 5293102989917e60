"""Hooks that collect, for one forward pass, what the curvature needs of each layer.

A :class:`Capture` is a context manager. Inside it every watched layer leaves its
input and the place in the autograd graph where its output was made; outside it
no hook remains on the model. The place, not the tensor, is kept, so that an
in-place activation after the layer does no harm.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from ocar.accel.batchnorm import batched_backward
from ocar.accel.convolution import inputs_only, turned_kernels
from ocar.accel.streams import one_stream
from ocar.errors import ModelError


class Capture:
    """Records the inputs and outputs of layers during the forward passes inside it.

    Args:
        layers: The layers to watch, by name.
        model: The model that they are part of.
    """

    def __init__(self, layers: Mapping[str, nn.Module], model: nn.Module) -> None:
        self.layers = layers
        self.model = model
        self.inputs: dict[str, Tensor] = {}
        self.listener: Callable[[str, Tensor], object] | None = None
        """Told of the input of each layer as soon as there is one, in the next forward pass."""
        self._edges: dict[str, GradientEdge] = {}
        self._handles: list[RemovableHandle] = []
        self._context = ExitStack()

    def __enter__(self) -> Capture:
        self.clear()
        self._context.enter_context(one_stream())
        self._context.enter_context(batched_backward(self.model.modules()))
        self._context.enter_context(turned_kernels(self.model.modules()))
        for name, layer in self.layers.items():
            self._handles.append(layer.register_forward_hook(self._recorder(name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._context.close()
        self.listener = None

    def _recorder(self, name: str) -> Any:
        def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if name in self._edges:
                raise ModelError(
                    f"Layer {name!r} ({type(module).__name__}) was called twice in one capture. "
                    "Curvature of a layer that is shared within a model is not supported: give "
                    f"each use a layer of its own, or leave it out with exclude=[{name!r}]."
                )
            if not output.requires_grad:
                raise ModelError(
                    f"Layer {name!r} was called without gradients. "
                    "Call the model outside torch.no_grad() and torch.inference_mode()."
                )
            self.inputs[name] = inputs[0].detach()
            self._edges[name] = get_gradient_edge(output)
            if self.listener is not None:
                self.listener(name, self.inputs[name])

        return record

    def clear(self) -> None:
        """Let go of what was recorded, and with it of the graph."""
        self.inputs.clear()
        self._edges.clear()

    def pull_back(
        self, outputs: Tensor, columns: Tensor, *, batched: bool = True
    ) -> dict[str, Tensor]:
        """Gradients of ⟨column, outputs⟩ at the output of each layer, for all columns.

        The graph is kept, so that the loss can be differentiated afterwards.

        Args:
            outputs: What the model returned, ``(n, outputs)``.
            columns: Shape ``(columns, n, outputs)``.
            batched: All columns in one backward pass; otherwise one after another.

        Returns:
            For each layer that the outputs depend on, ``(columns, *shape of its output)``.
        """
        edges = list(self._edges.values())
        with inputs_only():
            gradients = pull_back(outputs, edges, columns, batched=batched)
        return {n: g for n, g in zip(self._edges, gradients, strict=True) if g is not None}


def pull_back(
    outputs: Tensor,
    points: Sequence[GradientEdge] | Sequence[Tensor],
    columns: Tensor,
    *,
    batched: bool = True,
) -> list[Tensor | None]:
    """Vector-Jacobian products of ``outputs`` with each column at each point of the graph.

    Args:
        outputs: Shape ``(n, outputs)``.
        points: Edges or tensors to differentiate to.
        columns: Shape ``(columns, n, outputs)``.
        batched: All columns in one backward pass; otherwise one after another.

    Returns:
        For each point, ``(columns, *shape of the point)``; None where the outputs do not
        depend on it.
    """
    columns = columns.to(outputs.dtype)
    if outputs.is_cuda:
        _begin_thread(outputs.device)
    used: list[int] = []

    def differentiate(seed: Tensor) -> tuple[Tensor, ...]:
        grads = torch.autograd.grad(outputs, points, seed, retain_graph=True, allow_unused=True)
        found = {index: grad for index, grad in enumerate(grads) if grad is not None}
        used[:] = found
        return tuple(found.values())

    if batched:
        pulled = torch.func.vmap(differentiate)(columns)
    else:
        one_by_one = [differentiate(column) for column in columns]
        pulled = tuple(torch.stack(grads) for grads in zip(*one_by_one, strict=True))
    results: list[Tensor | None] = [None] * len(points)
    for index, grad in zip(used, pulled, strict=True):
        results[index] = grad
    return results


@functools.cache
def _begin_thread(device: torch.device) -> None:
    """Give PyTorch's thread for backward passes on a device something to do.

    Of one that begins with a product of matrices cuBLAS says that it had to make itself at home.
    """
    with torch.enable_grad():
        torch.ones((), device=device, requires_grad=True).exp().backward()


def reject_shared_parameters(layers: Mapping[str, nn.Module]) -> None:
    """Refuse layers that use the same parameter.

    Raises:
        ModelError: Two layers share a parameter.
    """
    owners: dict[int, str] = {}
    for name, layer in layers.items():
        for parameter in layer.parameters(recurse=False):
            other = owners.setdefault(id(parameter), name)
            if other != name:
                raise ModelError(
                    f"Layers {other!r} and {name!r} share a parameter. Curvature of shared "
                    f"parameters is not supported: untie them, or use exclude=[{name!r}]."
                )


def warn_uncovered(uncovered: Mapping[str, nn.Module], *, stacklevel: int = 4) -> None:
    """One warning that names the layers whose gradient is left as it is."""
    if uncovered:
        listed = ", ".join(f"{name} ({type(m).__name__})" for name, m in uncovered.items())
        warnings.warn(
            f"No curvature for {len(uncovered)} layer(s), which keep their plain gradient: "
            f"{listed}.",
            stacklevel=stacklevel,
        )
