"""Convolutions whose backward pass to the input is a convolution too.

The gradient at the input of a convolution with stride 1 is the convolution of
the gradient at its output with the kernel turned around. On a CPU that is two
to three times as fast as PyTorch's own backward pass, and pulling back the
columns of a Fisher's root is hardly anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

_pulling_back = False


@contextmanager
def turned_kernels(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside it convolutions on a CPU compute the same, to be differentiated so."""
    with ExitStack() as stack:
        for module in modules:
            if can_turn(module) and cast("nn.Conv2d", module).weight.is_cpu:
                conv = cast("nn.Conv2d", module)
                conv.forward = partial(_forward, conv)  # type: ignore[method-assign]
                stack.callback(conv.__dict__.pop, "forward")
        yield


@contextmanager
def inputs_only() -> Iterator[None]:
    """Inside it no gradient of a weight is computed by the convolutions above.

    PyTorch does not tell a backward pass which gradients are wanted.
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


def can_turn(module: nn.Module) -> bool:
    """Whether a layer is a 2-d convolution with stride 1 that the trick is for."""
    if type(module) is not nn.Conv2d or "forward" in module.__dict__:
        return False
    if not isinstance(module.padding, tuple):
        return False
    sides = zip(module.kernel_size, module.padding, strict=True)
    return (
        module.stride == (1, 1)
        and module.dilation == (1, 1)
        and module.groups == 1
        and module.padding_mode == "zeros"
        and all(pad < side for side, pad in sides)
    )


def input_gradient(g: Tensor, turned: Tensor, padding: Sequence[int]) -> Tensor:
    """The gradient at the input of a convolution with stride 1.

    Args:
        g: That at its output.
        turned: Its kernel turned around by both axes, with inputs and outputs exchanged.
        padding: Of the convolution.
    """
    sides = zip(turned.shape[2:], padding, strict=True)
    return functional.conv2d(g, turned, padding=[side - 1 - pad for side, pad in sides])


def _forward(conv: nn.Conv2d, x: Tensor) -> Tensor:
    apply = cast("Callable[..., Tensor]", _Convolution.apply)
    return apply(x, conv.weight, conv.bias, conv.padding)


class _Convolution(torch.autograd.Function):
    """A convolution with stride 1."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.has_bias = padding, bias is not None
        return functional.conv2d(x, weight, bias, padding=padding)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            gx = input_gradient(g, weight.flip(2, 3).transpose(0, 1), ctx.padding)
        if not _pulling_back and any(ctx.needs_input_grad[1:3]):
            sizes = [weight.shape[0]] if ctx.has_bias else None
            mask = [False, ctx.needs_input_grad[1], ctx.needs_input_grad[2]]
            _, gw, gb = torch.ops.aten.convolution_backward(
                g, x, weight, sizes, [1, 1], ctx.padding, [1, 1], False, [0, 0], 1, mask
            )
        return gx, gw, gb, None
