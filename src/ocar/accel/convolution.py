"""Convolutions with a faster backward pass.

The gradient at the input of a convolution with stride 1 is the convolution of the gradient at its
output with the flipped kernel. On a CPU that is two to three times as fast as PyTorch's backward
pass. On a GPU cuDNN's backward pass has no tensor cores for some numbers of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.layout import in_memory, is_channels_last, prefers_channels_last
from ocar.accel.streams import Side

if TYPE_CHECKING:
    from ocar.accel.weight_gradients import WeightGradients

_pulling_back = False


@contextmanager
def inputs_only() -> Iterator[None]:
    """Inside it convolutions compute no gradients of their weights.

    PyTorch does not tell a backward function which gradients are needed.
    """
    global _pulling_back
    _pulling_back = True
    try:
        yield
    finally:
        _pulling_back = False


def is_pulling_back() -> bool:
    """Whether this is inside :func:`inputs_only`."""
    return _pulling_back


@contextmanager
def fast_backward(
    modules: Iterable[nn.Module],
    *,
    flipped: FlippedKernels | None = None,
    weights: WeightGradients | None = None,
) -> Iterator[None]:
    """For a forward pass: the convolutions among the modules get the faster backward pass.

    Args:
        modules: Any modules.
        flipped: Kernels that were flipped in advance; otherwise each is flipped when it is needed.
        weights: Makes the gradients of several weights at a time.
    """
    side = Side()
    kernels = {} if flipped is None else side.run(lambda: flipped.current(side))
    with ExitStack() as stack:
        stack.callback(side.join)
        for module in modules:
            if is_plain(module):
                conv = cast("nn.Conv2d", module)
                forward = partial(_forward, conv, kernels.get(conv), weights)
                conv.forward = forward  # type: ignore[method-assign]
                stack.callback(conv.__dict__.pop, "forward")
        yield


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a 2-d convolution as PyTorch makes it, with zero padding."""
    return (
        type(module) is nn.Conv2d
        and "forward" not in module.__dict__
        and isinstance(module.padding, tuple)
        and module.padding_mode == "zeros"
    )


def can_flip(conv: nn.Conv2d) -> bool:
    """Whether the backward pass to the input is a convolution with the flipped kernel."""
    sides = zip(conv.kernel_size, cast("tuple[int, ...]", conv.padding), strict=True)
    return (
        conv.stride == (1, 1)
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and all(pad < side for side, pad in sides)
    )


def input_gradient(g: Tensor, flipped: Tensor, padding: Sequence[int]) -> Tensor:
    """The gradient at the input of a convolution with stride 1, from g at its output.

    Its kernel is ``flipped`` along both axes, with inputs and outputs exchanged.
    """
    sides = zip(flipped.shape[2:], padding, strict=True)
    return functional.conv2d(g, flipped, padding=[side - 1 - pad for side, pad in sides])


@dataclass(frozen=True, eq=False)
class _Flipped:
    """A flipped kernel, and the weight and its version that it was made of."""

    kernel: Tensor
    weight: Tensor
    version: int
    side: Side


class FlippedKernels:
    """Flips the kernels of all convolutions of a model at once."""

    def __init__(self, model: nn.Module) -> None:
        plain = [cast("nn.Conv2d", module) for module in model.modules() if is_plain(module)]
        self._convs = [conv for conv in plain if can_flip(conv)]
        self._places: Tensor | None = None

    def current(self, side: Side) -> dict[nn.Module, _Flipped]:
        """The flipped kernels of the present weights; ``side`` is where this runs."""
        if not self._convs:
            return {}
        weights = [conv.weight.detach() for conv in self._convs]
        flat = torch.cat([in_memory(w).reshape(-1) for w in weights])
        parts = flat.index_select(0, self._permutation()).split([w.numel() for w in weights])
        return {
            conv: _Flipped(_shaped(part, conv.weight), conv.weight, conv.weight._version, side)
            for conv, part in zip(self._convs, parts, strict=True)
        }

    def _permutation(self) -> Tensor:
        """Where each number of the flipped kernels is found; made once, not in a recording."""
        if self._places is None:
            found, start = [], 0
            for conv in self._convs:
                weight = conv.weight
                places = torch.arange(start, start + weight.numel(), dtype=torch.int32)
                flipped = places.as_strided(weight.shape, weight.stride()).flip(2, 3)
                found.append(in_memory(flipped.transpose(0, 1), like=weight).flatten())
                start += weight.numel()
            self._places = torch.cat(found).to(self._convs[0].weight.device)
        return self._places


def _shaped(flat: Tensor, weight: Tensor) -> Tensor:
    """A flipped kernel from its numbers in the order of memory, which is the weight's."""
    outputs, inputs, *side = weight.shape
    if is_channels_last(weight):
        return flat.view(inputs, *side, outputs).permute(0, 3, 1, 2)
    return flat.view(inputs, outputs, *side)


def _forward(
    conv: nn.Conv2d, flipped: _Flipped | None, weights: WeightGradients | None, x: Tensor
) -> Tensor:
    if torch.is_autocast_enabled(x.device.type):  # inputs and gradients differ in type
        return conv._conv_forward(x, conv.weight, conv.bias)
    if flipped is not None:
        same = flipped.weight is conv.weight and flipped.version == conv.weight._version
        flipped = flipped if same else None
    apply = cast("Callable[..., Tensor]", _Convolution.apply)
    return apply(x, conv.weight, conv.bias, flipped, conv, weights)


class _Convolution(torch.autograd.Function):
    """A 2-d convolution."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        flipped: _Flipped | None,
        conv: nn.Conv2d,
        weights: WeightGradients | None,
    ) -> Tensor:
        if prefers_channels_last(conv):
            x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, weight)
        ctx.flipped, ctx.conv, ctx.weights = flipped, conv, weights
        return conv._conv_forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        conv, flipped = ctx.conv, ctx.flipped
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]

        def gradients(*mask: bool) -> tuple[Tensor | None, ...]:
            sizes = None if conv.bias is None else [weight.shape[0]]
            geometry = conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups
            result = torch.ops.aten.convolution_backward(g, x, weight, sizes, *geometry, mask)
            return cast("tuple[Tensor | None, ...]", result)

        gx = gw = gb = None
        if wants_x:
            if flipped is not None:
                flipped.side.wait()
                gx = input_gradient(g, flipped.kernel, conv.padding)
            elif weight.is_cpu and can_flip(conv):
                gx = input_gradient(g, weight.flip(2, 3).transpose(0, 1), conv.padding)
            else:
                gx = gradients(True, False, False)[0]
        if (wants_weight or wants_bias) and not _pulling_back:
            of_weights = partial(gradients, False, wants_weight, wants_bias)
            if ctx.weights is not None and ctx.weights.collecting:
                ctx.weights.add(conv, x, g, of_weights)
            else:
                _, gw, gb = of_weights()
        return gx, gw, gb, None, None, None
