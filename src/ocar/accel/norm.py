"""BatchNorm, the addition of a shortcut and ReLU as one kernel, on a GPU.

A step on a mini-batch of small images is a chain of kernels that each take a few microseconds,
most of them for their own beginning. BatchNorm and what follows it are three of them forward and
three backward, and six where the columns of a Fisher's root are pulled back together; here each
is one. The numbers are those of PyTorch's own kernels up to rounding.

It needs Triton, see :mod:`ocar.accel.compiled`. Without it, on a CPU, and for images so many or large
that a kernel's beginning no longer counts, PyTorch's kernels do the work.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from ocar.accel.compiled import kernels
from ocar.accel.layout import laid, lies_by_pixel

_LARGEST = 32768  # numbers of a channel that one program keeps in registers
_SHARED = 16384  # numbers of several channels, where they lie side by side
_GROUP = 4  # most channels that are taken together then


def norm_relu(norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """``relu(norm(x) + shortcut)``.

    Args:
        norm: The layer.
        x: Images ``(n, channels, h, w)``.
        shortcut: Of the same shape.
    """
    if can_fuse(norm, x):
        return _normalize(norm, x, shortcut, relu=True)
    y: Tensor = norm(x)
    return functional.relu(y if shortcut is None else y + shortcut, inplace=True)


def normalize(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """``norm(x)`` by the same kernel; only where :func:`can_fuse` says so."""
    return _normalize(norm, x, None, relu=False)


def can_fuse(norm: nn.Module, x: Tensor) -> bool:
    """Whether the kernel does what the layer would: with statistics of the batch, on a GPU."""
    if not x.is_cuda or type(norm) is not nn.BatchNorm2d or not norm.training:
        return False
    if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks:
        return False
    if not norm.affine or norm.momentum is None or torch.is_autocast_enabled("cuda"):
        return False
    single = x.dtype == torch.float32 == norm.weight.dtype
    return single and 1 < x.numel() // x.shape[1] <= _LARGEST and _kernels() is not None


def _kernels() -> ModuleType | None:
    return kernels("ocar.accel.triton.norm")


def _normalize(norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
    tracks = norm.track_running_stats and norm.running_mean is not None
    if tracks and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    running = (norm.running_mean, norm.running_var) if tracks else (None, None)
    apply = cast("Callable[..., Tensor]", _FusedNorm.apply)
    return apply(x, norm.weight, norm.bias, shortcut, *running, norm.momentum, norm.eps, relu)


def _sizes(x: Tensor) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """What every kernel is told of the images, and how it is to go about it."""
    channels, area = x.shape[1], x.shape[2] * x.shape[3]
    count = x.shape[0] * area
    block = 1 << (count - 1).bit_length()
    by_pixel = lies_by_pixel(x)
    group = min(_GROUP, max(1, _SHARED // block)) if by_pixel else 1
    how = {"BY_PIXEL": by_pixel, "BLOCK": block, "GROUP": group}
    return (count, channels, area), {**how, "num_warps": min(16, max(1, block * group // 512))}


def _present(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor


class _FusedNorm(torch.autograd.Function):
    """``relu(norm(x) + shortcut)``, of which the last two may be left out."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        running_mean: Tensor | None,
        running_variance: Tensor | None,
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor:
        compiled = _kernels()
        assert compiled is not None
        x = x if lies_by_pixel(x) else x.contiguous()
        shortcut = None if shortcut is None else laid(shortcut, like=x)
        y = torch.empty_like(x)
        mean, scale = x.new_empty(2, x.shape[1]).unbind()
        sizes, how = _sizes(x)
        # For what there is none of another stands in, of which nothing is read or written.
        statistics = _present(running_mean, mean), _present(running_variance, scale)
        has_shortcut, tracks = shortcut is not None, running_mean is not None
        with torch.cuda.device_of(x):
            compiled.forward[(-(-x.shape[1] // how["GROUP"]),)](
                *(x, _present(shortcut, x), y, weight, bias, mean, scale, *statistics),
                *(*sizes, momentum, eps, int(has_shortcut), int(relu), int(tracks)),
                **how,
            )
        ctx.save_for_backward(x, weight, mean, scale, y if relu else None)
        ctx.has_shortcut = has_shortcut
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        apply = cast("Callable[..., tuple[Tensor, ...]]", _Backward.apply)
        gx, gw, gb, *gs = apply(g, *ctx.saved_tensors, ctx.has_shortcut)
        return gx, gw, gb, gs[0] if gs else None, None, None, None, None, None


class _Backward(torch.autograd.Function):
    """Gradients at x, weight, bias and shortcut, for one column or for several."""

    @staticmethod
    def forward(
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        mean: Tensor,
        scale: Tensor,
        y: Tensor | None,
        has_shortcut: bool,
    ) -> tuple[Tensor, ...]:
        gradients = _gradients(g.unsqueeze(0), x, weight, mean, scale, y, has_shortcut)
        return tuple(gradient.squeeze(0) for gradient in gradients)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], g: Tensor, *others: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """All columns in one call."""
        assert in_dims[0] is not None
        gradients = _gradients(g.movedim(in_dims[0], 0), *others)
        return gradients, (0,) * len(gradients)


def _gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    scale: Tensor,
    y: Tensor | None,
    has_shortcut: bool,
) -> tuple[Tensor, ...]:
    """As :class:`_Backward`; all that comes in and goes out has its columns first."""
    compiled = _kernels()
    assert compiled is not None
    columns, channels = g.shape[0], x.shape[1]
    g = laid(g.flatten(0, 1), like=x)
    gx = torch.empty_like(g)
    gs = torch.empty_like(g) if has_shortcut else None
    gw, gb = g.new_empty(2, columns, channels).unbind()
    sizes, how = _sizes(x)
    with torch.cuda.device_of(g):
        compiled.backward[(-(-channels // how["GROUP"]), columns)](
            *(g, x, _present(y, x), weight, mean, scale, gx, _present(gs, gx), gw, gb),
            *(*sizes, int(has_shortcut), int(y is not None)),
            **how,
        )
    gx = gx.unflatten(0, (columns, -1))
    return (gx, gw, gb) if gs is None else (gx, gw, gb, gs.unflatten(0, (columns, -1)))
