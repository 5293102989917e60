"""Hooks that record, for one forward pass, the inputs and outputs of layers.

Outside the context no hook remains on the model. Of an output only its place in the autograd graph
is kept, so that an in-place activation after the layer does no harm.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ocar import accel
from ocar.errors import ModelError


class Recorder:
    """Records the inputs and outputs of layers during the forward passes inside it.

    Args:
        layers: The layers to record, by name.
        model: The model that they are part of.

    Attributes:
        inputs: Input of each recorded layer, in the order of the forward pass.
    """

    def __init__(self, layers: Mapping[str, nn.Module], model: nn.Module) -> None:
        self.layers = layers
        self.model = model
        self.inputs: dict[str, Tensor] = {}
        self._edges: dict[str, GradientEdge] = {}
        self._context = ExitStack()

    def __enter__(self) -> Recorder:
        self._context.close()  # an interrupt may have left hooks behind
        self.clear()
        self._context.enter_context(accel.batched_backward(self.model))
        for name, layer in self.layers.items():
            handle = layer.register_forward_hook(partial(self._record, name))
            self._context.callback(handle.remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._context.close()

    def _record(
        self, name: str, module: nn.Module, inputs: tuple[Any, ...], output: Tensor
    ) -> None:
        if name in self._edges:
            raise ModelError(
                f"Layer {name!r} ({type(module).__name__}) was called twice in one recording. "
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

    def clear(self) -> None:
        """Drop the records, and with them the graph."""
        self.inputs.clear()
        self._edges.clear()

    def pull_back(
        self, outputs: Tensor, columns: Tensor, *, batched: bool = True
    ) -> dict[str, Tensor]:
        """:func:`pull_back` to the output of each recorded layer that the outputs depend on."""
        with accel.inputs_only():
            gradients = pull_back(outputs, list(self._edges.values()), columns, batched=batched)
        return {n: g for n, g in zip(self._edges, gradients, strict=True) if g is not None}


def pull_back(
    outputs: Tensor,
    points: Sequence[GradientEdge] | Sequence[Tensor],
    columns: Tensor,
    *,
    batched: bool = True,
) -> list[Tensor | None]:
    """Vector-Jacobian products of ``outputs`` with each column at each point of the graph.

    The graph is kept, so that the loss can be differentiated afterwards.

    Args:
        outputs: Shape ``(n, outputs)``.
        points: Edges or tensors to differentiate to.
        columns: Shape ``(columns, n, outputs)``.
        batched: All columns in one backward pass; otherwise one after another.

    Returns:
        For each point ``(columns, *shape of the point)``; None where the outputs do not depend on
        it.
    """
    columns = columns.to(outputs.dtype)
    accel.start_backward_thread(outputs)
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


def reject_shared_parameters(layers: Mapping[str, nn.Module]) -> None:
    """Raise a ``ModelError`` if two layers share a parameter."""
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
    """One warning that names the layers that keep their plain gradient."""
    if uncovered:
        listed = ", ".join(f"{name} ({type(m).__name__})" for name, m in uncovered.items())
        warnings.warn(
            f"No curvature for {len(uncovered)} layer(s), which keep their plain gradient: "
            f"{listed}.",
            stacklevel=stacklevel,
        )
