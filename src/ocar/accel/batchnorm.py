"""BatchNorm whose backward pass takes many columns at once.

A batched backward pass meets one BatchNorm after another, and PyTorch has no
kernel for several gradients of one forward pass: it would take them apart. But
BatchNorm treats each channel on its own, so the columns can go where the
channels are: one kernel does them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from ocar.accel.norm import can_fuse, normalize

_aten = torch.ops.aten
_ALL = [True, True, True]  # gradients of input, weight and bias


@contextmanager
def batched_backward(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside it the BatchNorm layers among the modules compute the same, to be differentiated so.

    Layers in eval mode, which use no statistics of the batch, are left alone.
    """
    with ExitStack() as stack:
        for module in modules:
            if _is_coupling(module):
                norm = cast("nn.BatchNorm2d", module)
                norm.forward = partial(_forward, norm)  # type: ignore[method-assign]
                stack.callback(module.__dict__.pop, "forward")
        yield


def _is_coupling(module: nn.Module) -> bool:
    """Whether a layer is a plain BatchNorm that uses the statistics of the batch."""
    known = type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if not known or not module.training or "forward" in module.__dict__:
        return False
    norm = cast("nn.BatchNorm2d", module)
    return norm.affine and norm.momentum is not None


def _forward(module: nn.BatchNorm2d, x: Tensor) -> Tensor:
    module._check_input_dim(x)
    if x.numel() == x.shape[1]:  # its variance would be NaN, and so the running one
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}"
        )
    if can_fuse(module, x):
        return normalize(module, x)
    if module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
    running = module.running_mean, module.running_var
    apply = cast("Callable[..., Tensor]", _BatchNorm.apply)
    return apply(x, module.weight, module.bias, *running, module.momentum, module.eps)


class _BatchNorm(torch.autograd.Function):
    """What ``functional.batch_norm`` does in training."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor | None,
        variance: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        y, center, scale, reserve, kind = _aten._batch_norm_impl_index(
            x, weight, bias, mean, variance, True, momentum, eps, torch.backends.cudnn.enabled
        )
        ctx.save_for_backward(x, weight, center, scale, reserve)
        ctx.kind, ctx.eps = kind, eps
        result: Tensor = y
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        apply = cast("Callable[..., tuple[Tensor, ...]]", _Backward.apply)
        return (*apply(g, *ctx.saved_tensors, ctx.kind, ctx.eps), None, None, None, None)


class _Backward(torch.autograd.Function):
    """Gradients of input, weight and bias, for one column or for several."""

    @staticmethod
    def forward(
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        center: Tensor,
        scale: Tensor,
        reserve: Tensor,
        kind: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        result: tuple[Tensor, Tensor, Tensor] = _aten._batch_norm_impl_index_backward(
            kind, x, g, weight, None, None, center, scale, True, eps, _ALL, reserve
        )
        return result

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        center: Tensor,
        scale: Tensor,
        reserve: Tensor,
        kind: int,
        eps: float,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """All columns in one call, each as so many channels more; on a CPU one after another."""
        assert in_dims[0] is not None
        if x.is_cpu:  # no copies of x, and what is next finds the columns first
            found = [
                _aten.native_batch_norm_backward(
                    column, x, weight, None, None, center, scale, True, eps, _ALL
                )
                for column in g.movedim(in_dims[0], 0)
            ]
            return tuple(torch.stack(parts) for parts in zip(*found, strict=True)), (0, 0, 0)
        columns, channels = info.batch_size, x.shape[1]
        wide = x.unsqueeze(1).expand(-1, columns, *x.shape[1:]).flatten(1, 2)
        g = g.movedim(in_dims[0], 1).flatten(1, 2)
        weight, center, scale = torch.stack((weight, center, scale)).repeat(1, columns)
        gx, gw, gb = _aten.native_batch_norm_backward(
            g, wide, weight, None, None, center, scale, True, eps, _ALL
        )
        split = (columns, channels)
        gradients = gx.unflatten(1, split), gw.unflatten(0, split), gb.unflatten(0, split)
        return gradients, (1, 0, 0)
