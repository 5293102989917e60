"""Curvature of one layer: what it keeps, how it is inverted, how it is applied.

A block holds the statistics of one layer, averaged over time, and the inverse
that is derived from them. There are three kinds:

* :class:`KroneckerBlock`: A ⊗ G, for linear layers and convolutions
* :class:`UnitBlock`: one small matrix for each unit, for the scale and shift of
  normalisation layers
* :class:`DiagonalBlock`: one number for each weight, for embeddings
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ocar.accel.layout import lies_by_pixel
from ocar.accel.rows import Rows
from ocar.curvature import factors, linalg
from ocar.curvature.factors import Sharing
from ocar.errors import CheckpointError, NumericalError

DampingKind = Literal["factored", "exact"]

MOSTLY = 0.9
"""On a CPU inputs that were never used are left out, if no more than this part was used."""

WIDE = 256
"""From so many inputs on it is worth while to leave out those that are not used."""

NORM_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)


class Block(ABC):
    """The curvature of one layer.

    Args:
        name: The layer's name within the model.
        module: The layer.
    """

    statistics: ClassVar[tuple[str, ...]]

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self.averages: dict[str, Tensor] = {}
        self._inverse: tuple[Tensor, ...] | None = None

    @abstractmethod
    def estimate(self, x: Tensor, g: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """Statistics of one batch.

        Args:
            x: Input of the layer, ``(n, ...)``.
            g: Output gradients with the sample weights in them, ``(columns, n, ...)``.
            weights: Weights for the input side, ``(n,)``, or None.
        """

    @abstractmethod
    def _invert(self, damping: Tensor | float) -> tuple[Tensor, ...]:
        """What :meth:`_apply` needs, from the averages."""

    def _try_invert(self, damping: Tensor | float) -> tuple[tuple[Tensor, ...], Tensor]:
        """As :meth:`_invert`, waiting for nothing, and whether it failed."""
        raise NotImplementedError(f"The inverse of layer {self.name!r} cannot be captured.")

    @abstractmethod
    def _apply(self, inverse: tuple[Tensor, ...], rows: Rows | None) -> None:
        """Rewrite the gradients of the layer's parameters."""

    @abstractmethod
    def eigenvalues(self, damping: Tensor | float) -> Tensor:
        """All eigenvalues of the damped curvature, ascending, in one dimension."""

    def average(self, new: Mapping[str, Tensor], weight: Mapping[str, Tensor | float]) -> None:
        """Mix new statistics into the averages: (1 − weight) · old + weight · new.

        The first estimate is taken whole, and so is one of another shape than
        the average: what was known of another layer does not carry over.
        """
        for key, value in new.items():
            old = self.averages.get(key)
            if old is None or old.shape != value.shape:
                self.averages[key] = value
            else:
                rate = weight[key]
                old.lerp_(value, rate.to(value.dtype) if isinstance(rate, Tensor) else rate)

    def invert(self, damping: Tensor | float) -> None:
        """Derive the inverse from the averages."""
        old, new = self._inverse, self._invert(damping)
        if old is None or not old[0].is_cuda or any(map(_differ, old, new)):
            self._inverse = new
            return
        for place, value in zip(old, new, strict=True):
            place.copy_(value)  # a captured graph looks for it there

    def renew_inverse_(self, damping: Tensor | float) -> Tensor:
        """Derive the inverse again, in place and without waiting; an old one must be there.

        Returns:
            Whether that failed, a scalar of bool; then the old inverse stays.
        """
        assert self._inverse is not None
        inverse, failed = self._try_invert(damping)
        for old, new in zip(self._inverse, inverse, strict=True):
            torch.where(failed, old, new, out=old)
        return failed

    def precondition_(self, rows: Rows | None = None) -> None:
        """Rewrite the gradients; a layer without gradient or curvature is left alone.

        Args:
            rows: X and Δ of a linear layer whose gradient is known to be ΔᵀX.
        """
        if self._inverse is not None and all(p.grad is not None for p in self.parameters):
            self._apply(self._inverse, rows)

    @property
    def cost(self) -> int:
        """About how long the inverse takes on a GPU: a factorization waits for its columns."""
        return sum(32 + t.shape[-1] for t in self.averages.values())

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters that the block covers."""
        own = (self.module._parameters.get(key) for key in ("weight", "bias"))
        return [p for p in own if p is not None and p.requires_grad]

    def tensors(self) -> list[Tensor]:
        """Everything that the block keeps."""
        return [*self.averages.values(), *(self._inverse or ())]

    def check(self, averages: Mapping[str, Tensor]) -> None:
        """Refuse averages that do not fit the layer.

        Raises:
            CheckpointError: A statistic is missing, unknown or of the wrong shape.
        """
        if averages and set(averages) != set(self.statistics):
            raise CheckpointError(
                f"Layer {self.name!r} needs the statistics {sorted(self.statistics)}; "
                f"the checkpoint has {sorted(averages)}."
            )
        for key, value in averages.items():
            expected = self._shape(key)
            if tuple(value.shape) != expected:
                raise CheckpointError(
                    f"Statistic {key!r} of layer {self.name!r} has shape {tuple(value.shape)} "
                    f"in the checkpoint; the layer needs {expected}."
                )

    def saved(self) -> dict[str, Tensor]:
        """The averages, in an order that does not depend on where the weights lie."""
        return self.averages

    def load(self, averages: Mapping[str, Tensor]) -> None:
        """Take what :meth:`saved` gave and fits; the inverse is derived again when needed."""
        like = next(self.module.parameters())
        self.averages = {k: v.to(like.device, copy=True) for k, v in averages.items()}
        self._inverse = None

    @abstractmethod
    def _shape(self, statistic: str) -> tuple[int, ...]:
        """The shape that a statistic of this layer must have."""


class KroneckerBlock(Block):
    """A ⊗ G for a linear layer or a convolution.

    Args:
        name: The layer's name within the model.
        module: A Linear, Conv1d or Conv2d.
        sharing: ``"expand"`` or ``"reduce"``, see :mod:`ocar.curvature.factors`.
        kind: ``"factored"`` damps A and G each, balanced by π; ``"exact"`` inverts
            A ⊗ G + τI in the eigenbases.
    """

    statistics = ("A", "G")

    def __init__(
        self,
        name: str,
        module: nn.Linear | nn.Conv1d | nn.Conv2d,
        *,
        sharing: Sharing,
        kind: DampingKind,
    ) -> None:
        super().__init__(name, module)
        self.layer = module
        self.sharing = sharing
        self.kind = kind
        self.by_pixel = lies_by_pixel(module.weight)
        self.active_outputs: Tensor | None = None
        """How many outputs exist, where the layer has spare ones; None for all."""
        self.used: Tensor | None = None
        """The inputs that A is of, ascending, where it is not of all: on a CPU those that never
        were anything but 0 are left out, if they are many. They are no part of the others."""

    @property
    def groups(self) -> int:
        """Groups of a convolution; 1 for a linear layer."""
        return 1 if isinstance(self.layer, nn.Linear) else self.layer.groups

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias to train."""
        return self.layer.bias is not None and self.layer.bias.requires_grad

    def estimate(self, x: Tensor, g: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """A and G of one batch."""
        return {"A": self.estimate_inputs(x, weights), "G": self.estimate_gradients(g)}

    def estimate_inputs(
        self, x: Tensor, weights: Tensor | None, *, out: Tensor | None = None
    ) -> Tensor:
        """A of one batch, for which no gradients are needed."""
        if isinstance(self.layer, nn.Linear):
            a = factors.linear_inputs(x, bias=self.has_bias)
        else:
            a = factors.conv_inputs(x, self.layer, bias=self.has_bias, by_pixel=self.by_pixel)
        if out is None:
            a = self._of_used(a)
        return factors.input_factor(a, sharing=self.sharing, weights=weights, out=out)

    def _of_used(self, a: Tensor) -> Tensor:
        """Inputs ``(n, groups, d_in, L)`` without those that A is not of.

        One that was 0 until now A comes to be of.
        """
        known = self.averages.get("A")
        if not self._may_leave_out or (known is not None and self.used is None):
            return a
        seen = a.ne(0).any(-1).any(0).any(0)
        if known is not None:
            seen[self.used] = True
        used = seen.nonzero().squeeze(-1)
        if known is None:
            self.used = None if self._are_most(used) else used
        elif self.used is not None and len(used) > len(self.used):
            self._take_all(factors.spread(known, self.used, a.shape[2]), used)
        return a if self.used is None else a.index_select(2, self.used)

    @property
    def _may_leave_out(self) -> bool:
        weight = self.layer.weight
        wide = weight.is_cpu and weight.dim() == 2 and weight.shape[1] >= WIDE
        return wide and self.kind == "factored"

    def _are_most(self, used: Tensor) -> bool:
        return len(used) > MOSTLY * self._shape("A")[-1]

    def _take_all(self, a: Tensor, used: Tensor | None = None) -> None:
        """Keep of a whole A what is used."""
        if used is None:
            used = a.diagonal(dim1=-2, dim2=-1).any(0).nonzero().squeeze(-1)
        most = not self._may_leave_out or self._are_most(used)
        self.used = None if most else used
        self.averages["A"] = a if most else _columns(a.index_select(1, used), used)

    @property
    def whole_a(self) -> Tensor:
        """The average of A over all inputs."""
        a = self.averages["A"]
        return a if self.used is None else factors.spread(a, self.used, self._shape("A")[-1])

    def estimate_gradients(self, g: Tensor, *, out: Tensor | None = None) -> Tensor:
        """G of one batch."""
        if isinstance(self.layer, nn.Linear):
            g = factors.linear_gradients(g)
        else:
            g = factors.conv_gradients(g, self.layer)
        return factors.gradient_factor(g, sharing=self.sharing, out=out)

    def saved(self) -> dict[str, Tensor]:
        """A, of all inputs, and G, kernels channel by channel."""
        if "A" not in self.averages or not (self.by_pixel or self.used is not None):
            return self.averages
        a = self.whole_a
        if self.by_pixel:
            order = factors.channel_order(self.layer.weight, bias=self.has_bias)
            a = _reordered(a, order)
        return self.averages | {"A": a}

    def load(self, averages: Mapping[str, Tensor]) -> None:
        """Take what :meth:`saved` gave and fits."""
        super().load(averages)
        if self.by_pixel and "A" in averages:
            order = factors.channel_order(self.layer.weight, bias=self.has_bias)
            self.averages["A"] = _reordered(self.averages["A"], order.argsort())
        self.used = None
        if "A" in averages:
            self._take_all(self.averages["A"])

    def _invert(self, damping: Tensor | float) -> tuple[Tensor, ...]:
        if self.kind == "exact":
            return self._decompose(damping)
        if self.used is not None and not bool(self.averages["A"].diagonal(dim1=-2, dim2=-1).all()):
            self._take_all(self.whole_a)  # as a checkpoint would be taken: some have faded to 0
        a, g = self.averages["A"], self.averages["G"]
        damping_a, damping_g = self._split(damping)
        names = (f"the inputs of layer {self.name!r}", f"the outputs of layer {self.name!r}")
        # On a CPU two triangular solves cost what a product costs, and two thirds of the work of
        # an inverse are saved: of the larger one, and where few rows are multiplied of both. On an
        # accelerator triangular solves are slow, and the inverse of the Cholesky factor does as
        # well as that of the matrix.
        invert = linalg.damped_factor if self.solves_g else linalg.damped_inverse
        of_g = invert(g, damping_g, name=names[1])
        factor = linalg.damped_factor(a, damping_a, name=names[0])
        if not a.is_cpu:
            return linalg.triangular_inverse(factor, out=torch.empty_like(a)), of_g
        return (factor, of_g) if self.used is None else (factor, of_g, self.used, damping_a)

    @property
    def solves_g(self) -> bool:
        """Whether G is kept as its Cholesky factor and not as its inverse."""
        return self.layer.weight.is_cpu and isinstance(self.layer, nn.Linear)

    def move_inverse(self, key: str, place: Tensor) -> None:
        """Keep the inverse of a factor elsewhere from now on; factored damping on a GPU only."""
        assert self._inverse is not None
        a, g = self._inverse
        self._inverse = (place.copy_(a), g) if key == "A" else (a, place.copy_(g))

    def _decompose(self, damping: Tensor | float) -> tuple[Tensor, ...]:
        a, g = self.averages["A"], self.averages["G"]
        values_a, vectors_a = linalg.eigen(a, name=f"the inputs of layer {self.name!r}")
        values_g, vectors_g = linalg.eigen(g, name=f"the outputs of layer {self.name!r}")
        denominator = values_g.unsqueeze(-1) * values_a.unsqueeze(-2) + damping
        if not bool((denominator > 0).all()):
            raise NumericalError(
                f"The curvature of layer {self.name!r} is singular with damping "
                f"{float(damping):.3g}. It must be larger than 0."
            )
        return vectors_a, vectors_g, denominator

    def _apply(self, inverse: tuple[Tensor, ...], rows: Rows | None) -> None:
        if rows is not None and self.kind == "factored":
            self._apply_to_rows(inverse, rows)
            return
        weight = self.layer.weight
        assert weight.grad is not None
        grad = self.gradient()
        dtype = inverse[0].dtype
        if self.kind == "factored":
            in_place = grad.dtype == dtype and grad.data_ptr() == weight.grad.data_ptr()
            if in_place and not grad.is_cpu:
                half = linalg.long_product(inverse[1] @ grad, inverse[0].mT)
                linalg.long_product(half, inverse[0], out=grad)
                return
            grad = grad.to(dtype)
            of_g = inverse[1]
            half = torch.cholesky_solve(grad, of_g) if self.solves_g else of_g @ grad
            result = _times_inverse_a(inverse, half)
        else:
            vectors_a, vectors_g, denominator = inverse
            rotated = vectors_g.mT @ grad.to(dtype) @ vectors_a
            result = vectors_g @ (rotated / denominator) @ vectors_a.mT
        new_weight, new_bias = self._split_gradient(result)
        weight.grad.copy_(new_weight)
        if new_bias is not None:
            assert self.layer.bias is not None
            assert self.layer.bias.grad is not None
            self.layer.bias.grad.copy_(new_bias)

    def gradient(self) -> Tensor:
        """The gradients of weight and bias as one matrix for each group."""
        weight, bias = self.layer.weight, self.layer.bias if self.has_bias else None
        assert weight.grad is not None
        return factors.gradient_matrix(
            weight.grad,
            None if bias is None else bias.grad,
            groups=self.groups,
            by_pixel=self.by_pixel,
        )

    @property
    def gradient_size(self) -> int:
        """How many numbers :meth:`gradient` has."""
        return sum(parameter.numel() for parameter in self.parameters)

    def replace_gradient(self, matrix: Tensor) -> None:
        """Take what has the shape of :meth:`gradient` as the gradients; no copy if it can be."""
        weight, bias = self._split_gradient(matrix)
        if bias is not None:
            assert self.layer.bias is not None
            self.layer.bias.grad = bias.contiguous()
            weight = torch.empty_like(self.layer.weight).copy_(weight)
        self.layer.weight.grad = weight

    def _split_gradient(self, matrix: Tensor) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.layer.weight, self.layer.bias if self.has_bias else None
        return factors.split_gradient_matrix(matrix, weight, bias, by_pixel=self.by_pixel)

    def _apply_to_rows(self, inverse: tuple[Tensor, ...], rows: Rows) -> None:
        """Write G⁻¹ΔᵀXA⁻¹ over the gradients of a linear layer, without another copy of it."""
        x, g = (part.to(inverse[0].dtype) for part in rows)
        inputs = torch.cat([x, x.new_ones(len(x), 1)], dim=1) if self.has_bias else x
        left = linalg.solve_right(inverse[1], g.unsqueeze(0))[0].mT
        right = _times_inverse_a(inverse, inputs.unsqueeze(0))[0]
        _product_(self.layer.weight.grad, left, right[:, : x.shape[1]])
        if self.has_bias:
            assert self.layer.bias is not None
            _product_(self.layer.bias.grad, left, right[:, -1])

    def _split(self, damping: Tensor | float) -> tuple[Tensor, Tensor]:
        a, g = self.averages["A"], self.averages["G"]
        a_dim = self._shape("A")[-1]
        return linalg.factored_damping(a, g, damping, a_dim=a_dim, g_dim=self.active_outputs)

    def eigenvalues(self, damping: Tensor | float) -> Tensor:
        """Products of the eigenvalues of A and G, damped as the inverse is."""
        values_a, _ = linalg.eigen(self.whole_a, name=self.name)
        values_g, _ = linalg.eigen(self.averages["G"], name=self.name)
        if self.active_outputs is not None:
            # Spare outputs have zero curvature and come first in ascending order.
            values_g = values_g[:, values_g.shape[1] - int(self.active_outputs) :]
        if self.kind == "factored":
            damping_a, damping_g = self._split(damping)
            values_a = values_a + damping_a.unsqueeze(-1)
            values_g = values_g + damping_g.unsqueeze(-1)
            damping = 0.0
        products = values_g.unsqueeze(-1) * values_a.unsqueeze(-2) + damping
        return products.flatten().sort().values

    def _shape(self, statistic: str) -> tuple[int, ...]:
        weight, groups = self.layer.weight, self.groups
        d_in = weight[0].numel() + int(self.has_bias)
        size = d_in if statistic == "A" else weight.shape[0] // groups
        return (groups, size, size)


def _reordered(stack: Tensor, order: Tensor) -> Tensor:
    """Rows and columns of each matrix in another order."""
    order = order.to(stack.device)
    return stack.index_select(1, order).index_select(2, order)


def _differ(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape


def _product_(place: Tensor | None, left: Tensor, right: Tensor) -> None:
    """Write a product into a gradient."""
    assert place is not None
    if place.dtype == left.dtype:
        torch.matmul(left, right, out=place)
    else:
        place.copy_(left @ right)


def _times_inverse_a(inverse: tuple[Tensor, ...], rows: Tensor) -> Tensor:
    """Rows · A⁻¹, from what ``KroneckerBlock._invert`` gave; rows are ``(groups, r, d_in)``."""
    a, _, *unused = inverse
    if not rows.is_cpu:
        return rows @ a.mT @ a
    if not unused:
        return linalg.solve_right(a, rows)
    used, damping = unused
    result = rows / damping.view(-1, 1, 1)
    return result.index_copy_(2, used, linalg.solve_right(a, _columns(rows, used)))


def _columns(stack: Tensor, used: Tensor) -> Tensor:
    """Some columns of each matrix; of one alone PyTorch takes them three times as fast."""
    if len(stack) == 1:
        return stack[0].index_select(1, used).unsqueeze(0)
    return stack.index_select(2, used)


class UnitBlock(Block):
    """A small matrix for each unit of a normalisation layer: its scale and its shift."""

    statistics = ("F",)

    def estimate(self, x: Tensor, g: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """1/n Σ_c Σ_n s sᵀ for each unit, s the score of its trainable parameters."""
        scores = factors.norm_scores(x, g, self.module)
        kept = [s for s, key in zip(scores, ("weight", "bias"), strict=True) if self._trains(key)]
        s = torch.stack(kept, dim=-1)
        return {"F": torch.einsum("cnui,cnuj->uij", s, s) / s.shape[1]}

    def _trains(self, key: str) -> bool:
        parameter = self.module._parameters.get(key)
        return parameter is not None and parameter.requires_grad

    def _invert(self, damping: Tensor | float) -> tuple[Tensor, ...]:
        name = f"layer {self.name!r}"
        return (linalg.damped_inverse(self.averages["F"], damping, name=name),)

    def _try_invert(self, damping: Tensor | float) -> tuple[tuple[Tensor, ...], Tensor]:
        inverse, failed = linalg.try_damped_inverse(self.averages["F"], damping)
        return (inverse,), failed

    def _apply(self, inverse: tuple[Tensor, ...], rows: Rows | None) -> None:
        grads = [p.grad for p in self.parameters if p.grad is not None]
        stacked = torch.stack([grad.flatten() for grad in grads], dim=-1).to(inverse[0].dtype)
        result = (inverse[0] @ stacked.unsqueeze(-1)).squeeze(-1)
        for grad, new in zip(grads, result.unbind(-1), strict=True):
            grad.copy_(new.view_as(grad))

    def eigenvalues(self, damping: Tensor | float) -> Tensor:
        """Eigenvalues of every unit's matrix."""
        values, _ = linalg.eigen(self.averages["F"], name=self.name)
        return (values + damping).flatten().sort().values

    def _shape(self, statistic: str) -> tuple[int, ...]:
        parameters = self.parameters
        return (parameters[0].numel(), len(parameters), len(parameters))


class DiagonalBlock(Block):
    """One number for each weight of an embedding."""

    statistics = ("F",)

    def estimate(self, x: Tensor, g: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """The diagonal of the Fisher."""
        return {"F": factors.embedding_diagonal(x, g, self.parameters[0].shape[0])}

    def _invert(self, damping: Tensor | float) -> tuple[Tensor, ...]:
        return ((self.averages["F"] + damping).reciprocal(),)

    def _try_invert(self, damping: Tensor | float) -> tuple[tuple[Tensor, ...], Tensor]:
        (inverse,) = self._invert(damping)
        return (inverse,), ~inverse.sum().isfinite()

    def _apply(self, inverse: tuple[Tensor, ...], rows: Rows | None) -> None:
        grad = self.parameters[0].grad
        assert grad is not None
        grad.mul_(inverse[0].to(grad.dtype))

    def eigenvalues(self, damping: Tensor | float) -> Tensor:
        """The damped diagonal."""
        return (self.averages["F"] + damping).flatten().sort().values

    def _shape(self, statistic: str) -> tuple[int, ...]:
        return tuple(self.parameters[0].shape)


def make_block(
    name: str,
    module: nn.Module,
    *,
    sharing: Sharing,
    kind: DampingKind,
    norm_layers: bool,
) -> Block | None:
    """The block for a layer, or None where there is none for its kind."""
    weight = module._parameters.get("weight")
    if weight is None or not weight.requires_grad:
        return None
    if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
        return KroneckerBlock(name, module, sharing=sharing, kind=kind)
    if isinstance(module, NORM_LAYERS) and norm_layers:
        return UnitBlock(name, module)
    if isinstance(module, nn.Embedding) and not module.sparse:
        return DiagonalBlock(name, module)
    return None
