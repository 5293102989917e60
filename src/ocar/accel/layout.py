"""Memory layouts of images and kernels: channels first (NCHW) or channels last (NHWC).

A convolution's weight is laid out as its device convolves fastest. Whoever flattens a weight, or
the patches that it is multiplied with, does it in the order of the weight in memory, so that no
copy is needed. Only what is saved is in one fixed order, channels first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

_WIDE = 64  # output channels from which channels last is faster on tensor cores


def lay_out_(model: nn.Module) -> None:
    """Choose the layout of a model's convolutions for its device, and of its gradients.

    Values stay. The outputs of a convolution have its layout, so that a stage of a network changes
    the layout of its images once. The gradients of embeddings are dense: what a step does to a
    gradient, such as flattening or preconditioning it, needs all of its rows.
    """
    for module in model.modules():
        if type(module) is nn.Conv2d and prefers_channels_last(module):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            module.sparse = False


def prefers_channels_last(conv: nn.Conv2d) -> bool:
    """Whether a convolution is faster channels last: a wide one, on tensor cores (TF32)."""
    weight = conv.weight
    if not weight.is_cuda or weight.dtype != torch.float32 or conv.groups > 1:
        return False
    has_tf32 = torch.cuda.get_device_capability(weight.device) >= (8, 0)
    return has_tf32 and weight.shape[0] >= _WIDE and conv.in_channels >= _WIDE // 2


def is_channels_last(t: Tensor) -> bool:
    """Whether images or kernels lie channels last in memory, and not channels first as well."""
    last = t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
    return last and not t.is_contiguous()


def is_dense(t: Tensor) -> bool:
    """Whether a tensor is contiguous in one of the two layouts."""
    return t.is_contiguous() or is_channels_last(t)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers in a row, those of each tensor in the order of memory."""
    return torch.cat([in_memory(t.detach()).reshape(-1) for t in tensors])


class Scratch:
    """Memory that is used again and again: on a CPU fresh memory takes longer than the copy."""

    def __init__(self) -> None:
        self._places: dict[Hashable, Tensor] = {}

    def flat(self, tensors: Sequence[Tensor], *, key: Hashable = None) -> Tensor:
        """:func:`flat`, valid until the next call with the same key."""
        if not all(t.is_cpu for t in tensors):
            return flat(tensors)
        numbers = [in_memory(t.detach()).reshape(-1) for t in tensors]
        dtype = functools.reduce(torch.promote_types, {t.dtype for t in numbers})
        place = self._places.get(key)
        if place is None or place.dtype != dtype:
            place = self._places[key] = torch.empty(0, dtype=dtype)
        return torch.cat(numbers, out=place.resize_(sum(map(len, numbers))))


def inner(row: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """The inner product of what :func:`flat` gave for some tensors with others of their shapes."""
    if not row.is_cpu:  # there a launch costs more than a copy
        return torch.dot(row, flat(tensors))
    pieces = row.split([t.numel() for t in tensors])
    parts = zip(pieces, tensors, strict=True)
    others = ((p, in_memory(t).reshape(-1).to(p.dtype)) for p, t in parts)
    return torch.stack([torch.dot(p, other) for p, other in others]).sum()


def has_square_kernel(conv: nn.Conv2d) -> bool:
    """Whether a convolution is the same both ways: zero padding, no dilation, one group."""
    return (
        isinstance(conv.padding, tuple)
        and all(s[0] == s[1] for s in (conv.kernel_size, conv.stride, conv.padding))
        and conv.padding_mode == "zeros"
        and conv.dilation == (1, 1)
        and conv.groups == 1
    )


def laid_out(t: Tensor, *, like: Tensor) -> Tensor:
    """Images in the layout of others; a copy unless they have it."""
    if is_channels_last(like):
        return t.contiguous(memory_format=torch.channels_last)
    return t.contiguous()


def in_memory(t: Tensor, *, like: Tensor | None = None) -> Tensor:
    """A view with the axes in the order of memory: of its own, or that of ``like``."""
    return t.movedim(1, -1) if is_channels_last(t if like is None else like) else t


def weight_matrix(t: Tensor, *, groups: int = 1) -> Tensor:
    """A weight, or its gradient, as ``(groups, d_out, d_in)``, inputs in the order of memory."""
    return in_memory(t).reshape(groups, t.shape[0] // groups, -1)


def from_weight_matrix(matrix: Tensor, *, like: Tensor) -> Tensor:
    """The inverse of :func:`weight_matrix`, in the shape and layout of a weight."""
    if is_channels_last(like):
        return matrix.reshape(like.movedim(1, -1).shape).movedim(-1, 1)
    return matrix.reshape(like.shape)


def split_inputs(t: Tensor, parts: int, *, like: Tensor) -> Tensor:
    """Inputs of :func:`weight_matrix` in parts, each with as many channels.

    Args:
        t: Shape ``(rows, d_in, ...)``, inputs in the order of the weight ``like`` in memory.
        parts: Number of parts.
        like: The weight.

    Returns:
        Shape ``(parts, rows, d_in / parts, ...)``.
    """
    split = t.unflatten(1, (_outer(like), parts, -1))
    return split.movedim(2, 0).flatten(2, 3)


def join_inputs(t: Tensor, *, like: Tensor) -> Tensor:
    """The inverse of :func:`split_inputs`: from ``(parts, rows, d_in / parts)`` to a matrix."""
    return t.unflatten(2, (_outer(like), -1)).movedim(0, 2).flatten(1)


def _outer(weight: Tensor) -> int:
    """How many numbers of a kernel lie outside its channels in memory."""
    return math.prod(weight.shape[2:]) if is_channels_last(weight) else 1


def saved_order(weight: Tensor, *, parts: int = 1) -> Tensor | None:
    """Where each input of :func:`weight_matrix` goes when it is saved, channels first.

    Args:
        weight: The weight.
        parts: The order is that within one part of :func:`split_inputs`.

    Returns:
        ``order`` of shape ``(d_in / parts,)`` with saved = in memory[order], on the host; None if
        both orders are the same. The inverse permutation is ``order.argsort()``.
    """
    if not is_channels_last(weight):
        return None
    channels, area = weight.shape[1] // parts, math.prod(weight.shape[2:])
    return torch.arange(channels * area).view(area, channels).T.flatten()
