"""BatchNorm with the addition of a shortcut and ReLU, and its backward pass for many columns.

On a GPU a step on a mini-batch of small images is a chain of kernels that take a few microseconds
each, most of it to start. BatchNorm and what follows it would be three kernels forward and three
backward, six for a batched backward pass. Here each is one, with the numbers of PyTorch's kernels
up to rounding.

A batched backward pass, which pulls several columns back at once, meets one BatchNorm after
another. PyTorch has no kernel for several gradients of one BatchNorm and takes them one by one. But
each channel is normalised by itself, so the columns can lie where the channels are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from ocar.accel.layout import is_channels_last, laid_out
from ocar.accel.operation import has_triton, launch, operation, power_of_2

_aten = torch.ops.aten
_ALL = [True, True, True]  # gradients of input, weight and bias
_LARGEST = 32768  # numbers of a channel that one program keeps in registers
_PART = 4096  # numbers of a larger channel that one program takes
_PARTS = 256  # most parts of a channel
_SHARED = 16384  # numbers of several channels, where they lie next to each other
_GROUP = 4  # channels that one program takes then


@operation
def norm_act(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """``relu(norm(x) + shortcut)`` of a BatchNorm layer and images ``(n, channels, h, w)``."""
    y: Tensor = norm(x)
    return functional.relu(y if shortcut is None else y + shortcut, inplace=True)


def _fits(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None) -> bool:
    """Whether the kernel computes what the layer would, with statistics of the batch."""
    if not x.is_cuda or type(norm) is not nn.BatchNorm2d or not norm.training:
        return False
    if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks:
        return False
    if not norm.affine or norm.momentum is None or torch.is_autocast_enabled("cuda"):
        return False
    single = x.dtype == torch.float32 == norm.weight.dtype
    return single and 1 < x.numel() // x.shape[1] <= _PART * _PARTS and has_triton(x)


@norm_act.implementation("triton", when=_fits)
def _norm_act_by_kernel(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
    return _fused(cast("nn.BatchNorm2d", norm), x, shortcut, relu=True)


def _fused(norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
    given = (x, norm.weight, norm.bias, *_running(norm), norm.momentum, norm.eps)
    return cast("Callable[..., Tensor]", _FusedNorm.apply)(*given, shortcut, relu)


def _running(norm: nn.BatchNorm2d) -> tuple[Tensor | None, Tensor | None]:
    """The running statistics that a batch moves; the batch is counted."""
    if not norm.track_running_stats or norm.running_mean is None:
        return None, None
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    return norm.running_mean, norm.running_var


@contextmanager
def batched_norms(modules: Iterable[nn.Module]) -> Iterator[None]:
    """For a forward pass: BatchNorm layers in train mode get a backward pass for many columns."""
    with ExitStack() as stack:
        for module in modules:
            if _couples(module):
                norm = cast("nn.BatchNorm2d", module)
                norm.forward = partial(_forward, norm)  # type: ignore[method-assign]
                stack.callback(module.__dict__.pop, "forward")
        yield


def _couples(module: nn.Module) -> bool:
    """Whether a layer is a BatchNorm as PyTorch makes it that uses statistics of the batch."""
    known = type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if not known or not module.training or "forward" in module.__dict__:
        return False
    norm = cast("nn.BatchNorm2d", module)
    return norm.affine and norm.momentum is not None


def _forward(module: nn.BatchNorm2d, x: Tensor) -> Tensor:
    module._check_input_dim(x)
    if x.numel() == x.shape[1]:  # the variance would be NaN, and so the running one
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}"
        )
    if _fits(module, x):
        return _fused(module, x, None, relu=False)
    given = (x, module.weight, module.bias, *_running(module), module.momentum, module.eps)
    return cast("Callable[..., Tensor]", _BatchNorm.apply)(*given)


class _BatchNorm(torch.autograd.Function):
    """``functional.batch_norm`` in training."""

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
        given = (*ctx.saved_tensors, ctx.kind, ctx.eps)
        return (*_pull_back(g, _gradients, *given), None, None, None, None)


def _gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    center: Tensor,
    scale: Tensor,
    reserve: Tensor,
    kind: int,
    eps: float,
) -> tuple[Tensor, ...]:
    """Gradients of input, weight and bias; g and the results have their columns first.

    On a GPU all columns are one call, as additional channels. On a CPU they come one after another:
    no copies of x, and the next layer finds the columns first.
    """
    if len(g) == 1:
        found = _aten._batch_norm_impl_index_backward(
            kind, x, g[0], weight, None, None, center, scale, True, eps, _ALL, reserve
        )
        return tuple(part.unsqueeze(0) for part in found)

    if x.is_cpu:
        columns = [
            _aten.native_batch_norm_backward(
                column, x, weight, None, None, center, scale, True, eps, _ALL
            )
            for column in g
        ]
        return tuple(torch.stack(parts) for parts in zip(*columns, strict=True))
    split = (len(g), x.shape[1])
    wide = x.unsqueeze(1).expand(-1, len(g), *x.shape[1:]).flatten(1, 2)
    weight, center, scale = torch.stack((weight, center, scale)).repeat(1, len(g))
    gx, gw, gb = _aten.native_batch_norm_backward(
        g.movedim(0, 1).flatten(1, 2), wide, weight, None, None, center, scale, True, eps, _ALL
    )
    return gx.unflatten(1, split).movedim(1, 0), gw.unflatten(0, split), gb.unflatten(0, split)


class _PullBack(torch.autograd.Function):
    """``gradients(g, *others)`` for one column or several; there is no second derivative."""

    @staticmethod
    def forward(
        g: Tensor, gradients: Callable[..., tuple[Tensor, ...]], *others: Any
    ) -> tuple[Tensor, ...]:
        return tuple(part.squeeze(0) for part in gradients(g.unsqueeze(0), *others))

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        g: Tensor,
        gradients: Callable[..., tuple[Tensor, ...]],
        *others: Any,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """All columns in one call."""
        assert in_dims[0] is not None
        found = gradients(g.movedim(in_dims[0], 0), *others)
        return found, (0,) * len(found)


_pull_back = cast("Callable[..., tuple[Tensor, ...]]", _PullBack.apply)


class _FusedNorm(torch.autograd.Function):
    """``relu(norm(x) + shortcut)`` by one kernel; shortcut and ReLU may be left out."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_variance: Tensor | None,
        momentum: float,
        eps: float,
        shortcut: Tensor | None,
        relu: bool,
    ) -> Tensor:
        from ocar.accel.triton import norm as kernels

        x = x if is_channels_last(x) else x.contiguous()
        shortcut = None if shortcut is None else laid_out(shortcut, like=x)
        y = torch.empty_like(x)
        mean, scale = x.new_empty(2, x.shape[1]).unbind()
        sizes, options = _sizes(x)
        parts = sizes[-1]
        grid = (-(-x.shape[1] // options["GROUP"]), parts)
        ctx.has_shortcut, tracks = shortcut is not None, running_mean is not None
        # A missing tensor is replaced by another one that the kernel never touches.
        statistics = (running_mean, running_variance) if tracks else (mean, scale)
        sums = mean
        if parts > 1:
            sums = x.new_empty(parts, 2, x.shape[1])
            launch(kernels.moments, grid, x, sums, *sizes, **options)
        launch(
            kernels.forward,
            grid,
            *(x, shortcut if ctx.has_shortcut else x, y, weight, bias, mean, scale, *statistics),
            *(sums, *sizes, momentum, eps, int(ctx.has_shortcut), int(relu), int(tracks)),
            PARTS=power_of_2(parts),
            **options,
        )
        ctx.save_for_backward(x, weight, mean, scale, y if relu else None)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        gx, gw, gb, *gs = _pull_back(g, _fused_gradients, *ctx.saved_tensors, ctx.has_shortcut)
        return gx, gw, gb, None, None, None, None, gs[0] if gs else None, None


def _fused_gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    scale: Tensor,
    y: Tensor | None,
    has_shortcut: bool,
) -> tuple[Tensor, ...]:
    """The gradients of :class:`_FusedNorm`; g and the results have their columns first."""
    from ocar.accel.triton import norm as kernels

    columns, channels = g.shape[0], x.shape[1]
    g = laid_out(g.flatten(0, 1), like=x)
    gx = torch.empty_like(g)
    gs = torch.empty_like(g) if has_shortcut else None
    gw, gb = g.new_empty(2, columns, channels).unbind()
    sizes, options = _sizes(x)
    parts, relu = sizes[-1], int(y is not None)
    grid = (-(-channels // options["GROUP"]), columns, parts)
    y = x if y is None else y
    sums = gw
    if parts > 1:
        sums = g.new_empty(columns, parts, 2, channels)
        launch(kernels.gradient_sums, grid, g, x, y, mean, scale, sums, *sizes, relu, **options)
    launch(
        kernels.backward,
        grid,
        *(g, x, y, weight, mean, scale, gx, gx if gs is None else gs, gw, gb),
        *(sums, *sizes, int(has_shortcut), relu),
        PARTS=power_of_2(parts),
        **options,
    )
    gx = gx.unflatten(0, (columns, -1))
    return (gx, gw, gb) if gs is None else (gx, gw, gb, gs.unflatten(0, (columns, -1)))


def _sizes(x: Tensor) -> tuple[tuple[int, int, int, int], dict[str, Any]]:
    """The sizes that a kernel needs, the last the number of parts, and its options."""
    channels, area = x.shape[1], x.shape[2] * x.shape[3]
    count = x.shape[0] * area
    block = power_of_2(count) if count <= _LARGEST else _PART
    last = is_channels_last(x)
    group = min(_GROUP, max(1, _SHARED // block)) if last else 1
    warps = min(16, max(1, block * group // 512))
    options = {"CHANNELS_LAST": last, "BLOCK": block, "GROUP": group, "num_warps": warps}
    return (count, channels, area, -(-count // block)), options
