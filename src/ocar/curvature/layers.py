"""Layers as the curvature sees them.

**The layout**, used everywhere in this package. A layer with shared weights applies them at several
*locations* of each sample: the pixels of a convolution, the tokens of a sequence; L = 1 where there
is one. Groups split the channels.

* inputs ``a``: ``(n, groups, d_in, L)``, with a row of ones last where there is a bias
* output gradients ``g``: ``(columns, n, groups, d_out, L)``, one column for each column of the
  Fisher's root
* the gradient of weight and bias as a matrix: ``(groups, d_out, d_in)``

The order of the inputs of a convolution is that of its weight in memory, and the same in all three.

A weight may be used several times in a forward pass: by a layer that is called twice, by two layers
that share it. The locations of all its uses count.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar import accel
from ocar.errors import ModelError

NORM_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True, eq=False)
class Use:
    """How a layer used its weight once, besides the input."""

    geometry: nn.Module | accel.Geometry | None = None
    """How a convolution was made; by default as the module says."""

    rows: slice | None = None
    """The rows of the weight that were used; None for all."""

    time_first: int = 0
    """The number of samples if they are in the second dimension, as in attention; else 0."""


ONCE = Use()
"""The whole weight, as the module says, samples first."""


class Layer(ABC):
    """A layer with trainable parameters.

    Args:
        name: Its name within the model.
        module: The module that has the parameters.
        weight: What the module calls the weight.
        bias: What it calls the bias; None for none.
        by_function: Whether the weight is looked for in calls of functions such as
            ``functional.linear``, because calls of the module do not show the weight's input.

    Attributes:
        modules: The modules that use the weight; several if they share it.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        *,
        weight: str = "weight",
        bias: str | None = "bias",
        by_function: bool = False,
    ) -> None:
        self.name = name
        self.module = module
        self.weight_name, self.bias_name = weight, bias
        self.by_function = by_function
        self.modules = [module]

    def __str__(self) -> str:
        return f"layer {self.name!r}"

    @property
    def weight(self) -> nn.Parameter:
        """The weight."""
        return cast("nn.Parameter", self.module._parameters[self.weight_name])

    @property
    def bias(self) -> nn.Parameter | None:
        """The bias, if there is one that trains."""
        bias = None if self.bias_name is None else self.module._parameters.get(self.bias_name)
        return bias if bias is not None and bias.requires_grad else None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Its trainable weight and bias."""
        own = (self.module._parameters.get(self.weight_name), self.bias)
        return [p for p in own if p is not None and p.requires_grad]

    @property
    def has_gradient(self) -> bool:
        """Whether all of its parameters have a gradient."""
        return all(p.grad is not None for p in self.parameters)

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its usual statistics, by name."""

    def by_sample(
        self, x: Tensor, g: Tensor, samples: int, use: Use = ONCE
    ) -> tuple[Tensor, Tensor]:
        """Input ``(n, ...)`` and output gradients ``(columns, n, ...)``, in float32 at least."""
        wide = torch.promote_types(g.dtype, torch.float32)
        x, g = x.to(wide) if x.is_floating_point() else x, g.to(wide)
        if use.time_first:
            x = x.reshape(-1, use.time_first, x.shape[-1]).transpose(0, 1)
            g = g.reshape(len(g), -1, use.time_first, g.shape[-1]).transpose(1, 2)
        if x.shape[0] == samples:
            return x, g
        raise ModelError(
            f"Layer {self.name!r} saw {x.shape[0]} rows for {samples} samples. Its curvature needs "
            f"the samples in the first dimension; leave it out with exclude=[{self.name!r}]."
        )


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

    def by_sample(
        self, x: Tensor, g: Tensor, samples: int, use: Use = ONCE
    ) -> tuple[Tensor, Tensor]:
        """Inputs and output gradients with the samples first.

        A linear layer may see the locations of a sample as rows of a longer batch.
        """
        rows = x.shape[0]
        if self.is_linear and not use.time_first and rows != samples and rows % samples == 0:
            x, g = x.unflatten(0, (samples, -1)), g.unflatten(1, (samples, -1))
        return super().by_sample(x, g, samples, use)

    def inputs(self, x: Tensor, use: Use = ONCE) -> Tensor:
        """What the weights are multiplied with, ``(n, groups, d_in, L)``."""
        a = self._patches(x, use)
        if self.parts > 1:
            split = accel.split_inputs(a.squeeze(1), self.parts, dim=1, like=self.weight)
            a = split.movedim(0, 1)
        if not self.has_bias:
            return a
        ones = a.new_ones(1).expand(a.shape[0], self.own_groups, 1, a.shape[3])
        return torch.cat([a, self._in_last_part(ones)], dim=2)

    def _patches(self, x: Tensor, use: Use) -> Tensor:
        """:meth:`inputs` without parts and bias."""
        if self.is_linear:
            return x.reshape(x.shape[0], -1, x.shape[-1]).mT.unsqueeze(1)
        return accel.patches(x, cast("nn.Conv2d", use.geometry or self.module))

    def split_rows(self, rows: Tensor) -> Tensor:
        """Rows of inputs ``(m, inputs)``, perhaps with a bias, as ``(parts, m, d_in)``."""
        size = self.size
        split = accel.split_inputs(rows[:, :size], self.parts, dim=1, like=self.weight)
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
        return g.flatten(3).unflatten(2, (self.own_groups, -1))

    def gradient(self) -> Tensor:
        """The gradient of weight and bias, ``(groups, d_out, d_in)``."""
        weight, bias = self.weight, self.bias
        assert weight.grad is not None
        matrix = self._matrix(weight.grad)
        if self.parts > 1:
            matrix = accel.split_inputs(matrix[0], self.parts, dim=1, like=weight)
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
        """A statistic with the inputs, its ``dims``, channels first as it is saved; or back."""
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

    def _patches(self, x: Tensor, use: Use) -> Tensor:
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
    """An embedding: one row of weights for each index."""

    module: nn.Embedding

    def diagonal_of(self, called: Called) -> Tensor:
        """See :meth:`diagonal`; the indices of all uses are one list."""
        indices = torch.cat([x.reshape(len(x), -1) for x, _ in called], dim=1)
        return self.diagonal(indices, torch.cat([_tokens(g) for _, g in called], dim=2))

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
        """The row that has no gradient."""
        return self.module.padding_idx


class TiedLayer(EmbeddingLayer):
    """A weight that is an embedding and a linear layer, as in language models.

    The score of a sample is the sum of both. That of the linear layer is Σ_l g aᵀ for its outputs
    g and inputs a, ``(rows, d)``.
    """

    def by_sample(
        self, x: Tensor, g: Tensor, samples: int, use: Use = ONCE
    ) -> tuple[Tensor, Tensor]:
        """As an embedding or a linear layer does."""
        if not x.is_floating_point():
            return super().by_sample(x, g, samples, use)
        if x.shape[0] != samples and x.shape[0] % samples == 0:
            x, g = x.unflatten(0, (samples, -1)), g.unflatten(1, (samples, -1))
        return Layer.by_sample(self, x, g, samples, use)

    def diagonal_of(self, called: Called) -> Tensor:
        """The diagonal of the sum: the squares of both, and twice their product."""
        looked_up = [(x, g) for x, g in called if not x.is_floating_point()]
        multiplied = [
            (x.reshape(len(x), -1, x.shape[-1]), _tokens(g))
            for x, g in called
            if x.is_floating_point()
        ]
        if not multiplied:
            return super().diagonal_of(looked_up)
        a, g = (torch.cat(parts, dim=-2) for parts in zip(*multiplied, strict=True))
        diagonal = torch.zeros_like(self.weight, dtype=g.dtype)
        for own, gradients in zip(a, g.unbind(1), strict=True):  # all samples would not fit
            diagonal += (gradients.mT @ own).square().sum(0)
        if looked_up:
            indices = torch.cat([x.reshape(len(x), -1) for x, _ in looked_up], dim=1)
            gradients = torch.cat([_tokens(g) for _, g in looked_up], dim=2)
            row, sample, score = self.used_rows(indices, gradients)
            both = torch.einsum("cpl,pld->cpd", g[:, sample, :, row].movedim(1, 0), a[sample])
            diagonal.index_add_(0, row, (score.square() + 2 * score * both).sum(0))
        return diagonal / len(a)

    @property
    def padding(self) -> int | None:
        """The row that has no gradient as an embedding."""
        found = [m.padding_idx for m in self.modules if isinstance(m, nn.Embedding)]
        return found[0]


class AddedLayer(DiagonalLayer):
    """A parameter ``(1, ...)`` that is added to every sample: positions, class tokens."""

    def by_sample(
        self, x: Tensor, g: Tensor, samples: int, use: Use = ONCE
    ) -> tuple[Tensor, Tensor]:
        """The sum and the gradients at it; several rows may belong to a sample."""
        if x.shape[0] != samples and x.shape[0] % samples == 0:
            x, g = x.unflatten(0, (samples, -1)), g.unflatten(1, (samples, -1))
        return super().by_sample(x, g, samples, use)

    def diagonal_of(self, called: Called) -> Tensor:
        """The gradient of a sample is the sum over what the parameter was added to."""
        shape = self.weight.shape[1:]
        score = torch.stack([_sum_to(g, shape) for _, g in called]).sum(0)
        return score.square().sum(0).mean(0, keepdim=True)


def _tokens(g: Tensor) -> Tensor:
    """``(columns, n, ..., d)`` as ``(columns, n, L, d)``."""
    return g.reshape(*g.shape[:2], -1, g.shape[-1])


def _sum_to(g: Tensor, shape: torch.Size) -> Tensor:
    """``(columns, n, ...)`` summed to ``(columns, n, *shape)``, as broadcasting asks."""
    extra = g.dim() - 2 - len(shape)
    g = g.sum(tuple(range(2, 2 + extra))) if extra else g
    single = [2 + i for i, size in enumerate(shape) if size == 1 and g.shape[2 + i] > 1]
    return g.sum(single, keepdim=True) if single else g


_KINDS: tuple[tuple[type[nn.Module], type[Layer]], ...] = (
    (nn.Linear, MatrixLayer),
    (nn.Conv1d, MatrixLayer),
    (nn.Conv2d, MatrixLayer),
    (nn.ConvTranspose1d, TransposedLayer),
    (nn.ConvTranspose2d, TransposedLayer),
    (nn.Embedding, EmbeddingLayer),
    *((kind, NormLayer) for kind in NORM_LAYERS),
)
"""The kinds of modules that have a layer."""


def make_layer(name: str, module: nn.Module) -> Layer | None:
    """The layer of a module, or None where there is none for its kind."""
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if weight is None or not weight.requires_grad:
        return None
    if bias is None and getattr(module, "bias", None) is not None:
        return None  # it is computed from other parameters
    if isinstance(module, nn.Embedding) and module.sparse:
        return None
    for kind, layer in _KINDS:
        if isinstance(module, kind):
            hidden = "forward" in module.__dict__ or type(module).forward is not kind.forward
            hidden |= layer in (TransposedLayer, EmbeddingLayer)
            return layer(name, module, by_function=hidden)
    return None


def make_layers(name: str, module: nn.Module) -> list[Layer]:
    """The layers of the parameters that a module has itself."""
    layer = make_layer(name, module)
    if layer is not None:
        return [layer]
    prefix = f"{name}." if name else ""
    own = {key: p for key, p in module._parameters.items() if p is not None and p.requires_grad}
    if type(module).__name__ == "Conv1D" and "weight" in own and own["weight"].dim() == 2:
        return [ReversedLayer(name, module, by_function=True)]
    if isinstance(module, nn.MultiheadAttention):
        # The weights of separate projections share one bias, which keeps its gradient.
        return [
            MatrixLayer(
                prefix + key,
                module,
                weight=f"{key}_weight",
                bias="in_proj_bias" if key == "in_proj" else None,
                by_function=True,
            )
            for key in ("in_proj", "q_proj", "k_proj", "v_proj")
            if f"{key}_weight" in own
        ]
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        weights = (key for key in own if key.startswith("weight"))
        return [
            MatrixLayer(prefix + key, module, weight=key, bias=f"bias{key[6:]}", by_function=True)
            for key in weights
        ]
    if type(module).__module__.startswith("torch.nn."):
        return []
    return [
        AddedLayer(prefix + key, module, weight=key, bias=None, by_function=True)
        for key, p in own.items()
        if p.dim() > 1 and p.shape[0] == 1
    ]
