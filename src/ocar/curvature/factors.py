"""From what a layer saw to the statistics of its curvature.

**The layout**, used everywhere in this package. A layer with shared weights
applies them at several *locations* of each sample: the pixels of a convolution,
the tokens of a sequence; L = 1 where there is one. Groups split the channels.

* inputs ``a``: ``(n, groups, d_in, L)``, with a row of ones last where there is a bias; the patches
  of a convolution are channel by channel or, if that is how its kernels lie, pixel by pixel
* output gradients ``g``: ``(columns, n, groups, d_out, L)``, one column for each
  column of the Fisher's root
* factors: A ``(groups, d_in, d_in)`` and G ``(groups, d_out, d_out)``
* the gradient of weight and bias as a matrix: ``(groups, d_out, d_in)``

The curvature of the layer is approximated by A ⊗ G with

* ``expand``: A = 1/n Σ_n Σ_l a aᵀ and G = 1/(nL) Σ_c Σ_n Σ_l g gᵀ, each location a
  term of its own (for convolutions: Grosse & Martens 2016);
* ``reduce``: A = 1/n Σ_n ā āᵀ with ā the mean over locations, G = 1/n Σ_c Σ_n ĝ ĝᵀ
  with ĝ the sum over them, each sample one term (Eschenhagen et al. 2023).

All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel import symmetric
from ocar.accel.layout import lies_by_pixel
from ocar.accel.patches import find_patches

Sharing = Literal["expand", "reduce"]


def linear_inputs(x: Tensor, *, bias: bool) -> Tensor:
    """Inputs of a linear layer, ``(n, ..., d)``, in the layout ``(n, 1, d_in, L)``."""
    a = x.reshape(x.shape[0], -1, x.shape[-1]).mT.unsqueeze(1)
    return _append_ones(a) if bias else a


def linear_gradients(g: Tensor) -> Tensor:
    """Output gradients of a linear layer, ``(columns, n, ..., d)``, in the layout."""
    return g.reshape(g.shape[0], g.shape[1], -1, g.shape[-1]).mT.unsqueeze(2)


def conv_inputs(
    x: Tensor, conv: nn.Conv1d | nn.Conv2d, *, bias: bool, by_pixel: bool = False
) -> Tensor:
    """Patches that a convolution sees, in the layout ``(n, groups, d_in, L)``.

    Args:
        x: Input of the layer, ``(n, channels, [height,] width)``.
        conv: The layer, for its kernel size, stride, padding, dilation and groups.
        bias: Whether to append a row of ones.
        by_pixel: Whether a patch is to be in the order pixel by pixel, or channel by channel.
    """
    samples, groups, area = x.shape[0], conv.groups, math.prod(conv.kernel_size)
    by_pixel = by_pixel or (area == 1 and lies_by_pixel(x))
    found = find_patches(x, conv, by_pixel=by_pixel)
    if found is not None and isinstance(conv, nn.Conv2d):
        a = found.rows(x, conv).unflatten(1, (samples, -1)).movedim(1, 0).unsqueeze(1)
        return _append_ones(a) if bias else a
    x, kernel, stride, dilation = _as_2d(x, conv)
    windows = _windows(x, kernel, stride, dilation)  # (channels, kernel, n, positions)
    if by_pixel:
        windows = windows.unflatten(0, (groups, -1)).permute(4, 5, 6, 0, 2, 3, 1)
        a = windows.reshape(samples, -1, groups, x.shape[1] // groups * area).permute(0, 2, 3, 1)
    else:
        a = windows.reshape(groups, x.shape[1] // groups * area, samples, -1).permute(2, 0, 1, 3)
    return _append_ones(a) if bias else a


def conv_gradients(g: Tensor, conv: nn.Conv1d | nn.Conv2d) -> Tensor:
    """Output gradients of a convolution, ``(columns, n, channels, ...)``, in the layout."""
    return g.flatten(3).unflatten(2, (conv.groups, -1))


def input_factor(
    a: Tensor, *, sharing: Sharing, weights: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """A, the second moment of the inputs.

    Args:
        a: Shape ``(n, groups, d_in, L)``.
        sharing: ``"expand"`` or ``"reduce"``.
        weights: One weight a sample, ``(n,)``: Σ w aaᵀ / Σ w. Without: the mean.
        out: Where to write it, on an accelerator.
    """
    samples = a.shape[0]
    if sharing == "reduce":
        a = a.mean(-1, keepdim=True)
    if weights is not None:
        a = a * (weights * (samples / weights.sum())).sqrt().view(-1, 1, 1, 1)
    return gram(a, scale=1 / samples, out=out)


def gradient_factor(g: Tensor, *, sharing: Sharing, out: Tensor | None = None) -> Tensor:
    """G, the second moment of the output gradients.

    Args:
        g: Shape ``(columns, n, groups, d_out, L)``; sample weights are already in it.
        sharing: ``"expand"`` or ``"reduce"``.
        out: Where to write it, on an accelerator.
    """
    if sharing == "reduce":
        g = g.sum(-1, keepdim=True)
    return gram(g.flatten(0, 1), scale=1 / (g.shape[1] * g.shape[-1]), out=out)


def spread(matrix: Tensor, used: Tensor, size: int) -> Tensor:
    """A matrix with rows and columns of 0 between its own.

    Args:
        matrix: Shape ``(groups, d, d)``.
        used: Where its own go, ``(d,)``.
        size: How many there are then.
    """
    wide = matrix.new_zeros(matrix.shape[0], matrix.shape[1], size).index_copy_(2, used, matrix)
    return matrix.new_zeros(matrix.shape[0], size, size).index_copy_(1, used, wide)


def gram(t: Tensor, *, scale: float = 1.0, out: Tensor | None = None) -> Tensor:
    """Σ over the batch and the locations of t tᵀ, times a number.

    Args:
        t: Shape ``(batch, groups, d, L)``.
        scale: The number.
        out: Where to write it, on an accelerator.

    Returns:
        Shape ``(groups, d, d)``.
    """
    rows = t.detach().permute(1, 2, 0, 3).flatten(2)  # for the patches of a convolution no copy
    if rows.is_cpu and out is None and len(rows) == 1:
        return symmetric.product(rows[0], scale).unsqueeze(0)
    with _tensor_cores(rows):
        if out is None:
            return (rows @ rows.mT).mul_(scale)
        return out.baddbmm_(rows, rows.mT, beta=0, alpha=scale)


@contextmanager
def _tensor_cores(like: Tensor) -> Iterator[None]:
    """Let a GPU round what it multiplies to TF32, as PyTorch does in convolutions.

    A sum of t tᵀ stays positive semi-definite when t is rounded, and the rounding is far smaller
    than what one batch differs from the next.
    """
    if not like.is_cuda or like.dtype != torch.float32:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def gradient_matrix(
    weight: Tensor, bias: Tensor | None, *, groups: int, by_pixel: bool = False
) -> Tensor:
    """Gradients of weight and bias as ``(groups, d_out, d_in)``, the bias in the last column.

    Args:
        weight: That of the weights.
        bias: That of the bias, if there is one.
        groups: Groups of a convolution.
        by_pixel: Whether a kernel is to be in the order pixel by pixel, or channel by channel.
    """
    weight = weight.movedim(1, -1) if by_pixel else weight
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    if bias is None:
        return matrix
    return torch.cat([matrix, bias.view(groups, -1, 1)], dim=-1)


def split_gradient_matrix(
    matrix: Tensor, weight: Tensor, bias: Tensor | None, *, by_pixel: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The inverse of :func:`gradient_matrix`, shaped like ``weight`` and ``bias``."""
    rest = None
    if bias is not None:
        matrix, rest = matrix[..., :-1], matrix[..., -1].reshape(bias.shape)
    if by_pixel:
        return matrix.reshape(weight.movedim(1, -1).shape).movedim(-1, 1), rest
    return matrix.reshape(weight.shape), rest


def channel_order(weight: Tensor, *, bias: bool) -> Tensor:
    """Where each weight of a kernel, channel by channel, is found when they go pixel by pixel.

    Args:
        weight: Of a convolution, ``(d_out, channels, ...)``.
        bias: Whether the bias comes last.

    Returns:
        Shape ``(d_in,)``; the inverse permutation is its ``argsort``.
    """
    channels, area = weight.shape[1], math.prod(weight.shape[2:])
    places = torch.arange(channels * area).view(area, channels).T.flatten()
    return torch.cat([places, places.new_tensor([channels * area])]) if bias else places


def normalized_inputs(x: Tensor, module: nn.Module) -> Tensor:
    """What a normalisation layer multiplies with its scale, in the shape of ``x``."""
    if isinstance(module, nn.LayerNorm):
        return functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return functional.group_norm(x, module.num_groups, eps=module.eps)
    norm = cast("nn.BatchNorm1d", module)
    if norm.training or norm.running_mean is None:
        return functional.batch_norm(x, None, None, training=True, eps=norm.eps)
    return functional.batch_norm(x, norm.running_mean, norm.running_var, eps=norm.eps)


def norm_scores(x: Tensor, g: Tensor, module: nn.Module) -> tuple[Tensor, Tensor]:
    """Score of scale and shift of a normalisation layer, for each column and sample.

    Args:
        x: Input of the layer, ``(n, ...)``.
        g: Output gradients, ``(columns, n, ...)``.
        module: A BatchNorm, LayerNorm or GroupNorm.

    Returns:
        Two tensors of shape ``(columns, n, units)``: of the scale and of the shift.
    """
    scaled = g * normalized_inputs(x, module)
    if isinstance(module, nn.LayerNorm):
        units = len(module.normalized_shape)
        middle = tuple(range(2, g.dim() - units))
        both = (t.sum(middle) if middle else t for t in (scaled, g))
        scale, shift = (t.flatten(2) for t in both)
    else:
        scale, shift = (t.flatten(3).sum(-1) if t.dim() > 3 else t for t in (scaled, g))
    return scale, shift


def embedding_diagonal(indices: Tensor, g: Tensor, rows: int) -> Tensor:
    """Diagonal of an embedding's Fisher: 1/n Σ_c Σ_n (Σ of g where the index is the row)².

    Args:
        indices: Shape ``(n, ...)``.
        g: Shape ``(columns, n, ..., d)``.
        rows: Number of rows of the embedding.

    Returns:
        Shape ``(rows, d)``.
    """
    samples, columns, d = indices.shape[0], g.shape[0], g.shape[-1]
    flat = indices.reshape(samples, -1)
    keys = (flat + rows * torch.arange(samples, device=flat.device).unsqueeze(1)).flatten()
    # Only the rows that a sample used: samples × rows would not fit.
    used, position = keys.unique(return_inverse=True)
    score = g.new_zeros(columns, used.numel(), d)
    score.index_add_(1, position, g.reshape(columns, -1, d))
    diagonal = g.new_zeros(rows, d)
    return diagonal.index_add_(0, used % rows, score.square().sum(0)) / samples


def _append_ones(a: Tensor) -> Tensor:
    return torch.cat([a, a.new_ones(1).expand(*a.shape[:2], 1, a.shape[3])], dim=2)


def _as_2d(
    x: Tensor, conv: nn.Conv1d | nn.Conv2d
) -> tuple[Tensor, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A convolution's padded input, kernel size, stride and dilation, in two dimensions."""
    if any(conv._reversed_padding_repeated_twice):
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = functional.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
    sizes = (conv.kernel_size, conv.stride, conv.dilation)
    if isinstance(conv, nn.Conv2d):
        kernel, stride, dilation = sizes
        return x, kernel, stride, dilation
    kernel, stride, dilation = ((1, *size) for size in sizes)
    return x.unsqueeze(2), kernel, stride, dilation


def _windows(
    x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    """What a kernel sees at every place: a view ``(channels, *kernel, n, rows, columns)``.

    With the samples behind the channels, one copy gives the rows of a product, all
    samples and places in a row; ``functional.unfold`` would copy sample by sample.
    """
    sizes = [
        (length - d * (k - 1) - 1) // s + 1
        for length, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    of_sample, of_channel, *of_pixel = x.stride()
    steps = [step * d for step, d in zip(of_pixel, dilation, strict=True)]
    jumps = [step * s for step, s in zip(of_pixel, stride, strict=True)]
    shape = (x.shape[1], *kernel, x.shape[0], *sizes)
    return x.as_strided(shape, (of_channel, *steps, of_sample, *jumps), x.storage_offset())
