"""Hooks that record, for one forward pass, the inputs and outputs of layers.

Outside the context no hook remains on the model. The recorder stores an output's edge in the
autograd graph, not its values. So an in-place activation after the layer does no harm.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ocar import accel
from ocar.curvature.functions import Functions
from ocar.curvature.layers import Layer, MatrixLayer, Use
from ocar.errors import ModelError
from ocar.structure import first_input


@dataclass(frozen=True, eq=False)
class Record:
    """One use of a layer's weight."""

    x: Tensor  #: The input.
    edge: GradientEdge  #: The output's place in the autograd graph.
    use: Use


class Recorder:
    """Records the inputs and outputs of layers during the forward passes inside it.

    The first recording also watches all functions, because any function may use the weight of a
    layer. Later recordings do so for the layers whose weights other functions use.

    Attributes:
        records: What was recorded of each layer, in the order of the forward pass.
        pull: Differentiates the outputs.
    """

    def __init__(self, layers: Mapping[str, Layer], model: nn.Module) -> None:
        self.layers = layers
        self.model = model
        self.pull = PullBack()
        self.records: dict[str, list[Record]] = {}
        self._followed = _followed(layers)
        self._watched: dict[str, Layer] = {}
        self.watch()
        self._functions: Functions | None = None
        self._started: dict[str, int] = {}  # records of a layer before its present call
        self._plain: Counter[str] = Counter()  # records of calls that compute nothing else
        self._without: list[str] = []  # layers that were called without gradients
        self._context = ExitStack()

    def __enter__(self) -> Recorder:
        self._context.close()  # an interrupt may have left hooks behind
        self.clear()
        self._context.enter_context(accel.batched_backward(self.model))
        for name, layer in self.layers.items():
            for module in [] if name in self._followed else layer.modules:
                record = partial(self._record_call, name)
                hooks = [module.register_forward_hook(record, with_kwargs=True)]
                if name in self._watched:
                    hooks.append(module.register_forward_pre_hook(partial(self._start_call, name)))
                for handle in hooks:
                    self._context.callback(handle.remove)
        if followed := self._followed | self._watched:
            self._functions = Functions(followed, emit=self._record, retract=self._drop_last)
            self._context.enter_context(self._functions)
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._context.close()
        if kind is None and self._without and not self.records:
            raise ModelError(
                f"Layer {self._without[0]!r} was called without gradients. "
                "Call the model outside torch.no_grad() and torch.inference_mode()."
            )
        if self._functions is None:
            return
        incomplete, self._functions = self._functions.incomplete, None
        if kind is None and self.records:
            self._watched = {
                name: layer
                for name, layer in self._watched.items()
                if name in incomplete or len(self.records.get(name, ())) != self._plain[name]
            }
        lost = [self.records.pop(name) for name in incomplete if name in self.records]
        if kind is None and lost and not self.records:
            raise ModelError(
                f"No layer has curvature: the weights of {', '.join(sorted(incomplete))} are used "
                "by functions whose inputs are not known. functional.linear, functional.embedding "
                "and convolutions are known."
            )

    def _start_call(self, name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._started[name] = len(self.records.get(name, ()))

    def _record_call(
        self, name: str, module: nn.Module, inputs: Any, named: Any, output: Tensor
    ) -> None:
        if name in self._watched and output.requires_grad:
            seen = self.records.get(name, [])[self._started[name] :]
            nodes = [one.edge.node for one in seen]
            if nodes in ([], [get_gradient_edge(output).node]):
                self._plain[name] += 1
            if seen:  # by the function that the module has called
                return
        self._record(name, first_input(inputs, named), output, Use(module))

    def _record(self, name: str, x: Tensor, output: Tensor, use: Use) -> None:
        if not output.requires_grad:
            self._without.append(name)
            return
        x = x.detach()
        if x.is_floating_point() and x.dtype != output.dtype:
            x = x.to(output.dtype)  # autocast multiplied a copy, and x may change in place
        record = Record(x, get_gradient_edge(output), use)
        self.records.setdefault(name, []).append(record)

    def _drop_last(self, name: str, output: Tensor) -> None:
        node = get_gradient_edge(output).node
        self.records[name] = [one for one in self.records[name] if one.edge.node is not node]

    def watch(self) -> None:
        """Let the next recording watch all functions, as the first one does."""
        self._watched = {n: own for n, own in self.layers.items() if n not in self._followed}

    def clear(self) -> None:
        """Drop the records, and with them the graph."""
        self.records.clear()
        self._plain.clear()
        self._without.clear()

    def pull_back(self, outputs: Tensor, columns: Tensor) -> dict[str, list[Tensor]]:
        """:func:`pull_back` to each recorded output of the layers that the outputs depend on.

        Raises:
            ModelError: The outputs depend on some uses of a weight and not on others.
        """
        names = [name for name, records in self.records.items() for _ in records]
        edges = [one.edge for records in self.records.values() for one in records]
        with accel.inputs_only():
            gradients = self.pull(outputs, edges, columns)
        found: dict[str, list[Tensor]] = {}
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None:
                found.setdefault(name, []).append(gradient)
        for name, own in found.items():
            if len(own) != len(self.records[name]):
                raise ModelError(
                    f"Layer {name!r} was called {len(self.records[name])} times in one recording, "
                    f"and the outputs depend on {len(own)} of the calls. Record one forward pass, "
                    f"or leave the layer out with exclude=[{name!r}]."
                )
        return found


def _followed(layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """The layers that are recorded by function: if there are any, all linear layers too.

    Another module may use the weight of a linear layer without calling it.
    """
    found = {name: own for name, own in layers.items() if own.by_function}
    if not found:
        return {}
    linear = {n: own for n, own in layers.items() if isinstance(own, MatrixLayer) and own.is_linear}
    return found | linear


Points = Sequence[GradientEdge] | Sequence[Tensor]


class PullBack:
    """:func:`pull_back` with all columns in one backward pass, where that is right.

    Some functions have no batched backward pass, and that of ``torch.cdist`` is wrong. So the first
    call compares two columns with a backward pass for each.

    Attributes:
        batched: Whether there is one backward pass for all columns.
    """

    def __init__(self) -> None:
        self.batched = True
        self._compared = False

    def __call__(self, outputs: Tensor, points: Points, columns: Tensor) -> list[Tensor | None]:
        """See :func:`pull_back`."""
        try:
            if self.batched and not self._compared and not accel.is_recording():
                self._compare(outputs, points)
            return pull_back(outputs, points, columns, batched=self.batched)
        except RuntimeError as error:
            if not self.batched:
                raise
            # If one after another fails too, batching was not the reason.
            gradients = pull_back(outputs, points, columns, batched=False)
            self._stop(str(error))
            return gradients

    def _compare(self, outputs: Tensor, points: Points) -> None:
        columns = torch.arange(2 * outputs.numel(), device=outputs.device, dtype=torch.float32)
        columns = columns.cos().view(2, *outputs.shape)
        both = (pull_back(outputs, points, columns, batched=batched) for batched in (True, False))
        if _differ(*both):
            self._stop("PyTorch computes wrong gradients if it batches them")
        self._compared = True

    def _stop(self, reason: str) -> None:
        self.batched = False
        warnings.warn(
            "The backward pass of this model cannot be batched; the columns of the Fisher are "
            f"computed one after another, which is slower: {reason}",
            stacklevel=6,
        )


def _differ(some: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> bool:
    """Whether gradients differ by more than rounding."""
    pairs = [(a, b) for a, b in zip(some, others, strict=True) if a is not None and b is not None]
    sizes = [float(b.float().norm()) for _, b in pairs]
    for (a, b), size in zip(pairs, sizes, strict=True):
        eps = torch.finfo(a.dtype).eps
        allowed = max(eps**0.25 * size, eps**0.5 * max(sizes))
        if float((a - b).float().norm()) > allowed:  # not if it is NaN
            return True
    return False


def pull_back(
    outputs: Tensor,
    points: Points,
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
        with accel.without_warnings_of_batching():
            pulled = torch.func.vmap(differentiate)(columns)
    else:
        one_by_one = [differentiate(column) for column in columns]
        pulled = tuple(torch.stack(grads) for grads in zip(*one_by_one, strict=True))
    results: list[Tensor | None] = [None] * len(points)
    for index, grad in zip(used, pulled, strict=True):
        results[index] = grad
    return results
