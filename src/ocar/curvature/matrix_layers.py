"""Linear layers and convolutions: the gradient is a matrix, the curvature a Kronecker product.

The layout of all tensors is that of :mod:`ocar.curvature.layers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar import accel
from ocar.curvature.layer import ONCE, Layer, Use


class MatrixLayer(Layer):
    """A linear layer or a convolution: its weight and bias are a matrix for each group.

    The joint projection of an attention layer is a linear layer. Where queries have other inputs
    than keys and values, each input uses some rows of the weight, and has output gradients of zero
    at the others.

    The input channels of a wide layer may be split into parts, see :mod:`ocar.curvature.cost`. Each
    part is a group of inputs; all parts have the same output gradients. The last part has the bias;
    the others have a zero in its place, so that all parts have one size.
    """

    parts: int = 1
    """Parts of the inputs; 1 if the module has groups itself."""

    @property
    def is_linear(self) -> bool:
        """Not a convolution."""
        return self.weight.dim() == 2

    @property
    def groups(self) -> int:
        """Groups of the inputs: those of a convolution, or parts."""
        return self.own_groups * self.parts

    @property
    def own_groups(self) -> int:
        """Groups of a convolution; 1 for a linear layer."""
        return 1 if self.is_linear else cast("nn.Conv2d", self.module).groups

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias to train."""
        return self.bias is not None

    @property
    def d_in(self) -> int:
        """Inputs of an output in a group, with one more for the bias."""
        return self.size // self.parts + int(self.has_bias)

    @property
    def size(self) -> int:
        """Inputs of an output in a group of the module, without the bias."""
        return math.prod(self.weight.shape[1:])

    @property
    def channels(self) -> int:
        """What parts share out; 1 if the inputs cannot be split."""
        return self.weight.shape[1] if self.own_groups == 1 else 1

    @property
    def d_out(self) -> int:
        """Outputs of a group."""
        return self.weight.shape[0] // self.own_groups

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """A of the inputs and G of the output gradients."""
        d_in, d_out = self.d_in, self.d_out
        return {"A": (self.groups, d_in, d_in), "G": (self.own_groups, d_out, d_out)}

    def locations(self, x: Tensor, use: Use = ONCE) -> int:
        """L for an input ``(n, ...)``."""
        if self.is_linear:
            return math.prod(x.shape[1:-1])
        return self.inputs(x[:1], use).shape[-1]

    def parts_of(self, a: Tensor) -> int:
        """The parts that a saved A is made of; 1 if there is no such number."""
        parts, rest = divmod(a.shape[0] if a.dim() == 3 else 1, self.own_groups)
        return parts if parts > 1 and rest == 0 and self.channels % parts == 0 else 1

    def sample_dims(self, x: Tensor, use: Use = ONCE) -> Sequence[int]:
        """Any but that of the features; the first of a convolution."""
        if not self.is_linear:
            return (0,)
        return (1, 0) if use.time_first else range(x.dim() - 1)

    def inputs(self, x: Tensor, use: Use = ONCE) -> Tensor:
        """What the weights are multiplied with, ``(n, groups, d_in, L)``."""
        a = self._patches(x, use)
        if self.parts > 1:
            split = accel.split_inputs(a.squeeze(1), self.parts, like=self.weight)
            a = split.movedim(0, 1)
        if not self.has_bias:
            return a
        ones = a.new_full((1,), float(use.with_bias))
        ones = ones.expand(a.shape[0], self.own_groups, 1, a.shape[3])
        return torch.cat([a, self._in_last_part(ones)], dim=2)

    def _patches(self, x: Tensor, use: Use) -> Tensor:
        """:meth:`inputs` without parts and bias."""
        if self.is_linear:
            return x.reshape(x.shape[0], -1, x.shape[-1]).mT.unsqueeze(1)
        if x.dim() > self.weight.dim():  # several images a sample
            each = self._patches(x.flatten(0, 1), use).unflatten(0, x.shape[:2])
            return each.movedim(1, -2).flatten(-2)
        return self._convolved(x, use)

    def _convolved(self, x: Tensor, use: Use) -> Tensor:
        """The patches of images ``(n, channels, ...)``, ``(n, groups, inputs, L)``."""
        return accel.patches(x, cast("nn.Conv2d", use.geometry or self.module))

    def split_rows(self, rows: Tensor) -> Tensor:
        """Rows of inputs ``(m, inputs)``, perhaps with a bias, as ``(parts, m, d_in)``."""
        size = self.size
        split = accel.split_inputs(rows[:, :size], self.parts, like=self.weight)
        return torch.cat([split, self._in_last_part(rows[None, :, size:])], dim=-1)

    def _in_last_part(self, t: Tensor) -> Tensor:
        """``(..., 1, d, d)`` with zeros before it, for the parts without a bias."""
        return functional.pad(t, (0, 0, 0, 0, self.parts - 1, 0)) if self.parts > 1 else t

    def gradients(self, g: Tensor, use: Use = ONCE) -> Tensor:
        """Output gradients ``(columns, n, ...)`` as ``(columns, n, own groups, d_out, L)``."""
        if self.is_linear:
            if use.rows is not None:
                above = use.rows.start, len(self.weight) - use.rows.stop
                g = functional.pad(g, above)
            return g.reshape(g.shape[0], g.shape[1], -1, g.shape[-1]).mT.unsqueeze(2)
        if g.dim() > self.weight.dim() + 1:  # several images a sample
            g = g.movedim(2, 3)
        return g.flatten(3).unflatten(2, (self.own_groups, -1))

    def gradient(self) -> Tensor:
        """The gradient of weight and bias, ``(groups, d_out, d_in)``."""
        weight, bias = self.weight, self.bias
        assert weight.grad is not None
        matrix = self._matrix(weight.grad)
        if self.parts > 1:
            matrix = accel.split_inputs(matrix[0], self.parts, like=weight)
        if bias is None:
            return matrix
        assert bias.grad is not None
        column = bias.grad.view(self.own_groups, -1, 1)
        return torch.cat([matrix, self._in_last_part(column)], dim=-1)

    def replace_gradient(self, matrix: Tensor) -> None:
        """Take ``(groups, d_out, d_in)`` as the gradient; without a bias this is no copy."""
        weight, bias = self.weight, self.bias
        matrix = matrix.to(weight.dtype)
        if bias is None:
            weight.grad = self._from_matrix(self._joined(matrix))
            return
        bias.grad = matrix[-self.own_groups :, :, -1].reshape(bias.shape).clone()
        assert weight.grad is not None
        whole = self._joined(matrix[..., :-1])
        weight.grad.copy_(self._from_matrix(whole))

    def _matrix(self, t: Tensor) -> Tensor:
        """A tensor of the shape of the weight as ``(own groups, d_out, inputs)``."""
        return accel.weight_matrix(t, groups=self.own_groups)

    def _from_matrix(self, matrix: Tensor) -> Tensor:
        """The inverse of :meth:`_matrix`."""
        return accel.from_weight_matrix(matrix, like=self.weight)

    def _joined(self, matrix: Tensor) -> Tensor:
        """``(groups, d_out, d_in)`` without parts."""
        return matrix if self.parts == 1 else accel.join_inputs(matrix, like=self.weight)

    def to_saved(self, t: Tensor, dims: Sequence[int] = (1, 2), *, back: bool = False) -> Tensor:
        """A statistic whose ``dims`` are inputs, in the saved order, channels first; or back."""
        order = accel.saved_order(self.weight, parts=self.parts)
        if order is None:
            return t
        order = torch.cat([order, torch.arange(len(order), self.d_in)])
        order = (order.argsort() if back else order).to(t.device)
        for dim in dims:
            t = t.index_select(dim, order)
        return t


class TransposedLayer(MatrixLayer):
    """A transposed convolution: a convolution whose inputs lie apart, see ``accel``.

    Its weight is ``(channels, outputs / groups, *kernel)``; the order of its inputs does not depend
    on the memory layout.
    """

    channels = 1

    @property
    def size(self) -> int:
        """Inputs of an output in a group, without the bias."""
        return self.weight.numel() // self.weight.shape[1] // self.own_groups

    @property
    def d_out(self) -> int:
        """Outputs of a group."""
        return self.weight.shape[1]

    def _convolved(self, x: Tensor, use: Use) -> Tensor:
        return accel.transposed_patches(x, cast("accel.Geometry", use.geometry))

    def _matrix(self, t: Tensor) -> Tensor:
        return t.unflatten(0, (self.own_groups, -1)).transpose(1, 2).flatten(2)

    def _from_matrix(self, matrix: Tensor) -> Tensor:
        inputs = len(self.weight) // self.own_groups, *self.weight.shape[2:]
        return matrix.unflatten(2, inputs).transpose(1, 2).reshape(self.weight.shape)

    def to_saved(self, t: Tensor, dims: Sequence[int] = (1, 2), *, back: bool = False) -> Tensor:
        """The order is always that in which it is saved."""
        return t


class ReversedLayer(MatrixLayer):
    """A linear layer whose weight is ``(inputs, outputs)``: ``Conv1D`` of transformers."""

    channels = 1

    @property
    def size(self) -> int:
        """Inputs of an output, without the bias."""
        return self.weight.shape[0]

    @property
    def d_out(self) -> int:
        """Outputs."""
        return self.weight.shape[1]

    def _matrix(self, t: Tensor) -> Tensor:
        return t.mT.unsqueeze(0)

    def _from_matrix(self, matrix: Tensor) -> Tensor:
        return matrix[0].mT.contiguous()
