"""Layers as the curvature sees them.

**The layout**, used everywhere in this package. A layer with shared weights applies them at several
*locations* of each sample: the pixels of a convolution, the tokens of a sequence; L = 1 where there
is one. Groups split the channels.

* inputs ``a``: ``(n, groups, d_in, L)``, with a row of ones last where there is a bias
* output gradients ``g``: ``(columns, n, groups, d_out, L)``, one column for each column of the
  Fisher's root
* the gradient of weight and bias as a matrix: ``(groups, d_out, d_in)``

The order of the inputs of a convolution is that of its weight in memory, and the same in all three.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar import accel
from ocar.errors import ModelError

NORM_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)


class Layer(ABC):
    """A layer with trainable parameters.

    Args:
        name: Its name within the model.
        module: The module.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module

    def __str__(self) -> str:
        return f"layer {self.name!r}"

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Its trainable weight and bias."""
        own = (self.module._parameters.get(key) for key in ("weight", "bias"))
        return [p for p in own if p is not None and p.requires_grad]

    @property
    def has_gradient(self) -> bool:
        """Whether all of its parameters have a gradient."""
        return all(p.grad is not None for p in self.parameters)

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its usual statistics, by name."""

    def by_sample(self, x: Tensor, g: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """Input ``(n, ...)`` and output gradients ``(columns, n, ...)``, in float32 at least."""
        wide = torch.promote_types(g.dtype, torch.float32)
        x, g = x.to(wide) if x.is_floating_point() else x, g.to(wide)
        if x.shape[0] == samples:
            return x, g
        raise ModelError(
            f"Layer {self.name!r} saw {x.shape[0]} rows for {samples} samples. Its curvature needs "
            f"the samples in the first dimension; leave it out with exclude=[{self.name!r}]."
        )


class MatrixLayer(Layer):
    """A linear layer or a convolution: its weight and bias are a matrix for each group.

    The input channels of a wide layer may be split into parts, see :mod:`ocar.curvature.cost`. Each
    part is a group of inputs; all parts have the same output gradients. The last part has the bias;
    the others have a zero in its place, so that all parts have one size.
    """

    module: nn.Linear | nn.Conv1d | nn.Conv2d

    parts: int = 1
    """Parts of the inputs; 1 if the module has groups itself."""

    @property
    def is_linear(self) -> bool:
        """Not a convolution."""
        return isinstance(self.module, nn.Linear)

    @property
    def groups(self) -> int:
        """Groups of the inputs: those of a convolution, or parts."""
        return self.own_groups * self.parts

    @property
    def own_groups(self) -> int:
        """Groups of a convolution; 1 for a linear layer."""
        return 1 if isinstance(self.module, nn.Linear) else self.module.groups

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias to train."""
        return self.module.bias is not None and self.module.bias.requires_grad

    @property
    def d_in(self) -> int:
        """Inputs of an output in a group, with one more for the bias."""
        return math.prod(self.module.weight.shape[1:]) // self.parts + int(self.has_bias)

    @property
    def d_out(self) -> int:
        """Outputs of a group."""
        return self.module.weight.shape[0] // self.own_groups

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """A of the inputs and G of the output gradients."""
        d_in, d_out = self.d_in, self.d_out
        return {"A": (self.groups, d_in, d_in), "G": (self.own_groups, d_out, d_out)}

    def locations(self, x: Tensor) -> int:
        """L for an input ``(n, ...)``."""
        if isinstance(self.module, nn.Linear):
            return math.prod(x.shape[1:-1])
        return self.inputs(x[:1]).shape[-1]

    def parts_of(self, a: Tensor) -> int:
        """The parts that a saved A is made of; 1 if there is no such number."""
        parts, rest = divmod(a.shape[0] if a.dim() == 3 else 1, self.own_groups)
        fits = parts > 1 and rest == 0 and self.own_groups == 1
        return parts if fits and self.module.weight.shape[1] % parts == 0 else 1

    def by_sample(self, x: Tensor, g: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """Inputs and output gradients with the samples first.

        A linear layer may see the locations of a sample as rows of a longer batch.
        """
        if self.is_linear and x.shape[0] != samples and x.shape[0] % samples == 0:
            x, g = x.unflatten(0, (samples, -1)), g.unflatten(1, (samples, -1))
        return super().by_sample(x, g, samples)

    def inputs(self, x: Tensor) -> Tensor:
        """What the weights are multiplied with, ``(n, groups, d_in, L)``."""
        if isinstance(self.module, nn.Linear):
            a = x.reshape(x.shape[0], -1, x.shape[-1]).mT.unsqueeze(1)
        else:
            a = accel.patches(x, self.module)
        if self.parts > 1:
            weight = self.module.weight
            a = accel.split_inputs(a.squeeze(1), self.parts, dim=1, like=weight).movedim(0, 1)
        if not self.has_bias:
            return a
        ones = a.new_ones(1).expand(a.shape[0], self.own_groups, 1, a.shape[3])
        return torch.cat([a, self._in_last_part(ones)], dim=2)

    def split_rows(self, rows: Tensor) -> Tensor:
        """Rows of inputs ``(m, inputs)``, perhaps with a bias, as ``(parts, m, d_in)``."""
        size = math.prod(self.module.weight.shape[1:])
        split = accel.split_inputs(rows[:, :size], self.parts, dim=1, like=self.module.weight)
        return torch.cat([split, self._in_last_part(rows[None, :, size:])], dim=-1)

    def _in_last_part(self, t: Tensor) -> Tensor:
        """``(..., 1, d, d)`` with zeros before it, for the parts without a bias."""
        return functional.pad(t, (0, 0, 0, 0, self.parts - 1, 0)) if self.parts > 1 else t

    def gradients(self, g: Tensor) -> Tensor:
        """Output gradients ``(columns, n, ...)`` as ``(columns, n, own groups, d_out, L)``."""
        if self.is_linear:
            return g.reshape(g.shape[0], g.shape[1], -1, g.shape[-1]).mT.unsqueeze(2)
        return g.flatten(3).unflatten(2, (self.own_groups, -1))

    def gradient(self) -> Tensor:
        """The gradient of weight and bias, ``(groups, d_out, d_in)``."""
        weight, bias = self.module.weight, self.module.bias
        assert weight.grad is not None
        matrix = accel.weight_matrix(weight.grad, groups=self.own_groups)
        if self.parts > 1:
            matrix = accel.split_inputs(matrix[0], self.parts, dim=1, like=weight)
        if not self.has_bias:
            return matrix
        assert bias is not None
        assert bias.grad is not None
        column = bias.grad.view(self.own_groups, -1, 1)
        return torch.cat([matrix, self._in_last_part(column)], dim=-1)

    def replace_gradient(self, matrix: Tensor) -> None:
        """Take ``(groups, d_out, d_in)`` as the gradient; without a bias this is no copy."""
        weight = self.module.weight
        matrix = matrix.to(weight.dtype)
        if not self.has_bias:
            weight.grad = accel.from_weight_matrix(self._joined(matrix), like=weight)
            return
        bias = self.module.bias
        assert bias is not None
        bias.grad = matrix[-self.own_groups :, :, -1].reshape(bias.shape).clone()
        assert weight.grad is not None
        whole = self._joined(matrix[..., :-1])
        weight.grad.copy_(accel.from_weight_matrix(whole, like=weight))

    def _joined(self, matrix: Tensor) -> Tensor:
        """``(groups, d_out, d_in)`` without parts."""
        return matrix if self.parts == 1 else accel.join_inputs(matrix, like=self.module.weight)

    def to_saved(self, t: Tensor, dims: Sequence[int] = (1, 2), *, back: bool = False) -> Tensor:
        """A statistic with the inputs, its ``dims``, channels first as it is saved; or back."""
        order = accel.saved_order(self.module.weight, parts=self.parts)
        if order is None:
            return t
        order = torch.cat([order, torch.arange(len(order), self.d_in)])
        order = (order.argsort() if back else order).to(t.device)
        for dim in dims:
            t = t.index_select(dim, order)
        return t


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


class EmbeddingLayer(Layer):
    """An embedding: one row of weights for each index."""

    module: nn.Embedding

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """One number a weight."""
        return {"F": tuple(self.module.weight.shape)}

    def diagonal(self, indices: Tensor, g: Tensor) -> Tensor:
        """1/n Σ_c Σ_n (Σ of g where the index is the row)², ``(rows, d)``.

        Indices are ``(n, ...)``, output gradients ``(columns, n, ..., d)``.
        """
        rows, samples, columns, d = len(self.module.weight), len(indices), g.shape[0], g.shape[-1]
        flat = indices.reshape(samples, -1)
        keys = (flat + rows * torch.arange(samples, device=flat.device).unsqueeze(1)).flatten()
        # Only the rows that a sample used: samples × rows would not fit.
        used, position = keys.unique(return_inverse=True)
        score = g.new_zeros(columns, used.numel(), d)
        score.index_add_(1, position, g.reshape(columns, -1, d))
        diagonal = g.new_zeros(rows, d)
        return diagonal.index_add_(0, used % rows, score.square().sum(0)) / samples


def make_layer(name: str, module: nn.Module) -> Layer | None:
    """The layer of a module, or None where there is none for its kind."""
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if weight is None or not weight.requires_grad:
        return None
    if bias is None and getattr(module, "bias", None) is not None:
        return None  # it is computed from other parameters
    if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
        return MatrixLayer(name, module)
    if isinstance(module, NORM_LAYERS):
        return NormLayer(name, module)
    if isinstance(module, nn.Embedding) and not module.sparse:
        return EmbeddingLayer(name, module)
    return None
