"""Layers with a small curvature: a matrix for each unit, or a number for each weight.

The layout of all tensors is that of :mod:`ocar.curvature.layers`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.curvature.layer import ONCE, Layer, Use

NORM_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)


class NormLayer(Layer):
    """A normalisation layer: a scale and a shift for each unit."""

    def trains(self, key: str) -> bool:
        """Whether its weight or bias is trained."""
        parameter = self.module._parameters.get(key)
        return parameter is not None and parameter.requires_grad

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """One small matrix a unit."""
        own = self.parameters
        return {"F": (own[0].numel(), len(own), len(own))}

    def sample_dims(self, x: Tensor, use: Use = ONCE) -> Sequence[int]:
        """Those before the units of LayerNorm; the first of the others, one row a sample."""
        if isinstance(self.module, nn.LayerNorm):
            return range(x.dim() - len(self.module.normalized_shape))
        return (0,)

    def normalized(self, x: Tensor) -> Tensor:
        """What is multiplied with the scale, in the shape of ``x``."""
        module = self.module
        if isinstance(module, nn.LayerNorm):
            return functional.layer_norm(x, module.normalized_shape, eps=module.eps)
        if isinstance(module, nn.GroupNorm):
            return functional.group_norm(x, module.num_groups, eps=module.eps)
        norm = cast("nn.BatchNorm1d", module)
        if norm.training or norm.running_mean is None:
            return functional.batch_norm(x, None, None, training=True, eps=norm.eps)
        return functional.batch_norm(x, norm.running_mean, norm.running_var, eps=norm.eps)

    def scores(self, x: Tensor, g: Tensor) -> Tensor:
        """Scores of scale and shift, ``(columns, n, units, trained)``."""
        both = {"weight": g * self.normalized(x), "bias": g}
        trained = [t for key, t in both.items() if self.trains(key)]
        if isinstance(self.module, nn.LayerNorm):
            middle = tuple(range(2, g.dim() - len(self.module.normalized_shape)))
            summed = [(t.sum(middle) if middle else t).flatten(2) for t in trained]
        else:
            summed = [t.flatten(3).sum(-1) if t.dim() > 3 else t for t in trained]
        return torch.stack(summed, dim=-1)


Called = Sequence[tuple[Tensor, Tensor]]
"""Input ``(n, ...)`` and output gradients ``(columns, n, ...)`` of each use of a weight."""


class DiagonalLayer(Layer):
    """A layer whose curvature is the diagonal of the Fisher."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """One number a weight."""
        return {"F": tuple(self.weight.shape)}

    @abstractmethod
    def diagonal_of(self, called: Called) -> Tensor:
        """1/n Σ_c Σ_n s², in the shape of the weight; s is the gradient of a sample."""


class EmbeddingLayer(DiagonalLayer):
    """An embedding: one row of weights for each index.

    Its weight may also be that of a linear layer, as in language models. The score of a sample is
    the sum of both. That of the linear layer is Σ_l g aᵀ for its outputs g and inputs a,
    ``(rows, d)``.
    """

    module: nn.Embedding

    def sample_dims(self, x: Tensor, use: Use = ONCE) -> Sequence[int]:
        """Any, but not that of features."""
        return range(x.dim() - x.is_floating_point())

    def diagonal_of(self, called: Called) -> Tensor:
        """The diagonal of the sum: the squares of both, and twice their product."""
        looked_up = [(x, g) for x, g in called if not x.is_floating_point()]
        multiplied = [
            (x.reshape(len(x), -1, x.shape[-1]), _tokens(g))
            for x, g in called
            if x.is_floating_point()
        ]
        if not multiplied:
            return self.diagonal(*_joined(looked_up))
        a, g = (torch.cat(parts, dim=-2) for parts in zip(*multiplied, strict=True))
        diagonal = torch.zeros_like(self.weight, dtype=g.dtype)
        for own, gradients in zip(a, g.unbind(1), strict=True):  # all samples would not fit
            diagonal += (gradients.mT @ own).square().sum(0)
        if looked_up:
            row, sample, score = self.used_rows(*_joined(looked_up))
            both = torch.einsum("cpl,pld->cpd", g[:, sample, :, row].movedim(1, 0), a[sample])
            diagonal.index_add_(0, row, (score.square() + 2 * score * both).sum(0))
        return diagonal / len(a)

    def diagonal(self, indices: Tensor, g: Tensor) -> Tensor:
        """1/n Σ_c Σ_n (Σ of g where the index is the row)², ``(rows, d)``.

        Indices are ``(n, ...)``, output gradients ``(columns, n, ..., d)``.
        """
        row, _, score = self.used_rows(indices, g)
        diagonal = g.new_zeros(self.weight.shape)
        return diagonal.index_add_(0, row, score.square().sum(0)) / len(indices)

    def used_rows(self, indices: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows that each sample used, as often as there are indices; unused places are zero.

        Only used rows have a score: samples × rows would not fit into memory. The number of places
        is that of the indices, so that no shape depends on their values.

        Returns:
            Row and sample of each place, ``(places,)``, and the scores, ``(columns, places, d)``.
        """
        rows, samples, columns, d = len(self.weight), len(indices), g.shape[0], g.shape[-1]
        flat = indices.reshape(samples, -1)
        first = rows * torch.arange(samples, device=flat.device).unsqueeze(1)
        keys, order = (flat + first).flatten().sort(stable=True)
        starts = torch.cat([keys.new_zeros(1), (keys.diff() != 0).long()])
        place = starts.cumsum(0)
        used = torch.zeros_like(keys).index_copy_(0, place, keys)
        score = g.new_zeros(columns, keys.numel(), d)
        score.index_add_(1, place, g.reshape(columns, -1, d)[:, order])
        if (padding := self.padding) is not None:
            score = score.masked_fill((used % rows == padding).unsqueeze(-1), 0.0)
        return used % rows, used // rows, score

    @property
    def padding(self) -> int | None:
        """The row that has no gradient as an embedding."""
        return self.module.padding_idx


class AddedLayer(DiagonalLayer):
    """A parameter ``(1, ...)`` that is added to every sample: positions, class tokens."""

    def sample_dims(self, x: Tensor, use: Use = ONCE) -> Sequence[int]:
        """The first ones, along which the parameter is repeated; ``x`` is the sum."""
        extra = x.dim() - self.weight.dim()
        own = next((i for i, size in enumerate(self.weight.shape) if size > 1), x.dim() - extra)
        return range(min(extra + own, x.dim() - 1))

    def diagonal_of(self, called: Called) -> Tensor:
        """The gradient of a sample is the sum over what the parameter was added to."""
        shape = self.weight.shape[1:]
        score = torch.stack([_sum_to(g, shape) for _, g in called]).sum(0)
        return score.square().sum(0).mean(0, keepdim=True)


def _joined(looked_up: Called) -> tuple[Tensor, Tensor]:
    """Indices ``(n, L)`` of all uses, and gradients ``(columns, n, L, d)``."""
    indices = torch.cat([x.reshape(len(x), -1) for x, _ in looked_up], dim=1)
    return indices, torch.cat([_tokens(g) for _, g in looked_up], dim=2)


def _tokens(g: Tensor) -> Tensor:
    """``(columns, n, ..., d)`` as ``(columns, n, L, d)``."""
    return g.reshape(*g.shape[:2], -1, g.shape[-1])


def _sum_to(g: Tensor, shape: torch.Size) -> Tensor:
    """``(columns, n, ...)`` summed to ``(columns, n, *shape)``, as broadcasting asks."""
    extra = g.dim() - 2 - len(shape)
    g = g.sum(tuple(range(2, 2 + extra))) if extra else g
    single = [2 + i for i, size in enumerate(shape) if size == 1 and g.shape[2 + i] > 1]
    return g.sum(single, keepdim=True) if single else g
