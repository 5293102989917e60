"""BatchNorm with the statistics of a batch whose rows lie on several ranks.

``torch.nn.SyncBatchNorm`` does this on GPUs alone, and has no backward pass for many columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ocar.accel.norm import _pull_back
from ocar.accel.ranks import Ranks


@contextmanager
def synchronized_norms(norms: Iterable[_BatchNorm], ranks: Ranks) -> Iterator[None]:
    """For a forward pass: BatchNorm layers in train mode use statistics over all ranks."""
    with ExitStack() as stack:
        for norm in norms:
            if norm.training or norm.running_mean is None:
                stack.callback(_put_back, norm, norm.__dict__.get("forward"))
                norm.forward = partial(_forward, norm, ranks)  # type: ignore[method-assign]
        yield


def _put_back(norm: nn.Module, forward: Any) -> None:
    if forward is None:
        norm.__dict__.pop("forward", None)
    else:
        norm.__dict__["forward"] = forward


def _forward(norm: _BatchNorm, ranks: Ranks, x: Tensor) -> Tensor:
    norm._check_input_dim(x)
    mean = variance = None
    rate = 0.0 if norm.momentum is None else norm.momentum
    if norm.training and norm.track_running_stats:
        mean, variance = norm.running_mean, norm.running_var
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if norm.momentum is None:  # a plain mean over batches
                rate = 1.0 / float(norm.num_batches_tracked)
    given = (x, norm.weight, norm.bias, mean, variance, rate, norm.eps, ranks)
    return cast("Callable[..., Tensor]", _SharedNorm.apply)(*given)


class _SharedNorm(torch.autograd.Function):
    """``functional.batch_norm`` in training, over the rows of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_variance: Tensor | None,
        momentum: float,
        eps: float,
        ranks: Ranks,
    ) -> Tensor:
        mean, variance, count = _statistics(x, ranks)
        if running_mean is not None and running_variance is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            unbiased = variance * (count / (count - 1))
            running_variance.lerp_(unbiased.to(running_variance.dtype), momentum)
        scale = (variance + eps).rsqrt()
        normal = ((x - _wide(mean, x)) * _wide(scale, x)).to(x.dtype)
        ctx.save_for_backward(normal, weight, scale)
        ctx.count, ctx.ranks, ctx.has_bias = count, ranks, bias is not None
        y = normal if weight is None else normal * _wide(weight, x)
        return y if bias is None else y + _wide(bias, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        normal, weight, scale = ctx.saved_tensors
        gx, gw, gb = _pull_back(g, _gradients, normal, weight, scale, ctx.count, ctx.ranks)
        own = (None if weight is None else gw), (gb if ctx.has_bias else None)
        return gx, *own, None, None, None, None, None


def _statistics(x: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance of each channel over all ranks, and the numbers of a channel.

    Each rank sends those of its rows. Merged this way nothing large is subtracted (Chan, Golub &
    LeVeque, 1979).
    """
    dims = [d for d in range(x.dim()) if d != 1]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, dims, correction=0)
    count = mean.new_full((1,), x.numel() / x.shape[1])
    found = ranks.all_gather(torch.cat([mean, variance, count])[None], [1] * ranks.size)
    channels = len(mean)
    means, variances, counts = found.split([channels, channels, 1], dim=1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    variance = ((variances + (means - mean).square()) * counts).sum(0) / total
    return mean, variance, total


def _gradients(
    g: Tensor, normal: Tensor, weight: Tensor | None, scale: Tensor, count: Tensor, ranks: Ranks
) -> tuple[Tensor, ...]:
    """Gradients of the input, and this rank's part of those of weight and bias, columns first."""
    dims = [d for d in range(1, g.dim()) if d != 2]
    gb, gw = g.sum(dims), (g * normal).sum(dims)
    sums = ranks.sum_(torch.stack([gb, gw])) / count
    mean, slope = (part[(..., *[None] * (g.dim() - 3))].unsqueeze(1) for part in sums)
    gx = (g - mean - normal * slope) * _wide(scale, normal).to(g.dtype)
    return (gx if weight is None else gx * _wide(weight, normal)), gw, gb


def _wide(channels: Tensor, x: Tensor) -> Tensor:
    """One number a channel, in a shape that fits ``(n, channels, ...)``."""
    return channels.view(1, -1, *[1] * (x.dim() - 2))
