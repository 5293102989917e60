"""Gradients of the weights beside the backward pass, in a step that is recorded as a CUDA graph.

A backward pass is a chain: the gradient at the input of a layer waits for that of the layer
above. The gradient of a convolution's weight hangs beside the chain; nothing waits for it before
the step is taken. On streams of their own these kernels, a third of the time, cost little.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ocar.curvature.convolution import is_pulling_back
from ocar.curvature.lanes import BESIDE, is_capturing

_STREAMS = 4


class SideGradients:
    """Runs the backward passes of a model.

    Args:
        model: Any module.
        device: Where it is.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._lanes: dict[nn.Module, torch.cuda.Stream] | None = None
        self._used: list[torch.cuda.Stream] = []
        self._kept: list[object] = []

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """For the forward pass; does nothing unless a graph is being recorded."""
        with ExitStack() as stack:
            if is_capturing(self._device):
                for module in self._model.modules():
                    if _is_plain(module):
                        conv = cast("nn.Conv2d", module)
                        conv.forward = partial(_forward, conv, self)  # type: ignore[method-assign]
                        stack.callback(conv.__dict__.pop, "forward")
            yield

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to ``.grad`` of all parameters."""
        if not is_capturing(self._device):
            loss.backward()
            return
        streams = itertools.cycle(_streams(self._device))
        self._lanes = {module: next(streams) for module in self._model.modules()}
        try:
            loss.backward()
            current = torch.cuda.current_stream(self._device)
            for stream in self._used:  # another is no part of the graph
                current.wait_stream(stream)
        finally:
            self._lanes = None
            self._used.clear()
            self._kept.clear()

    @property
    def accumulating(self) -> bool:
        """Whether the backward pass that runs now is one of :meth:`backward`."""
        return self._lanes is not None

    def accumulate(self, conv: nn.Conv2d, gradients: Callable[[], Tensors], keep: object) -> None:
        """Add gradients of weight and bias to ``.grad``, beside the current stream.

        Args:
            conv: Whose they are.
            gradients: Computes them.
            keep: The tensors that this reads.
        """
        assert self._lanes is not None
        self._kept.append(keep)
        lane = self._lanes[conv]
        lane.wait_stream(torch.cuda.current_stream(self._device))
        if lane not in self._used:
            self._used.append(lane)
        with torch.cuda.stream(lane):
            for parameter, gradient in zip((conv.weight, conv.bias), gradients(), strict=True):
                if parameter is None or gradient is None:
                    continue
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)


Tensors = tuple[Tensor | None, Tensor | None]


@functools.cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device, priority=BESIDE) for _ in range(_STREAMS)]


def _is_plain(module: nn.Module) -> bool:
    return (
        type(module) is nn.Conv2d
        and "forward" not in module.__dict__
        and isinstance(module.padding, tuple)
        and module.padding_mode == "zeros"
    )


def _forward(conv: nn.Conv2d, side: SideGradients, x: Tensor) -> Tensor:
    apply = cast("Callable[..., Tensor]", _Convolution.apply)
    return apply(x, conv.weight, conv.bias, conv, side)


class _Convolution(torch.autograd.Function):
    """A convolution that hands the gradients of its weight and bias to :class:`SideGradients`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv: nn.Conv2d,
        side: SideGradients,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.conv, ctx.side = conv, side
        return conv._conv_forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        conv, side = ctx.conv, ctx.side
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]

        def gradients(*mask: bool) -> tuple[Tensor | None, ...]:
            sizes = None if conv.bias is None else [weight.shape[0]]
            geometry = conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups
            result = torch.ops.aten.convolution_backward(g, x, weight, sizes, *geometry, mask)
            return cast("tuple[Tensor | None, ...]", result)

        gx = gradients(True, False, False)[0] if wants_x else None
        gw = gb = None
        if (wants_weight or wants_bias) and not is_pulling_back():
            of_weights = partial(gradients, False, wants_weight, wants_bias)
            if side.accumulating:
                side.accumulate(conv, lambda: cast("Tensors", of_weights()[1:]), keep=(x, g))
            else:
                _, gw, gb = of_weights()
        return gx, gw, gb, None, None
