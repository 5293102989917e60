"""K-FAC: a Kronecker-factored approximation of the Fisher, layer by layer.

Martens & Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate
Curvature" (ICML 2015). The Fisher of a layer is approximated by A ⊗ G, the second
moments of its inputs and of its output gradients, so that

    (A ⊗ G)⁻¹ ∇ = G⁻¹ ∇ A⁻¹.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ocar import accel
from ocar.accel import linalg
from ocar.curvature.blocks import Blocks, DiagonalBlocks, Seen, UnitBlocks
from ocar.curvature.foof import InputBlocks
from ocar.curvature.layers import DiagonalLayer, Layer, MatrixLayer, NormLayer
from ocar.curvature.layerwise import LayerCurvature


class FactorBlocks(InputBlocks):
    """A as in FOOF, and G, for linear layers and convolutions."""

    about = "Kronecker factors"
    symmetric = ("A", "G")

    units: Tensor | None = None
    """K, the units of the head, if A·√K and G/√K are averaged; None for A and G."""

    def statistics(self, layer: MatrixLayer) -> dict[str, tuple[int, ...]]:
        """A and G."""
        return layer.shapes()

    def estimate(self, seen: Mapping[str, Seen]) -> None:
        """G of a batch, and the scale of A and G."""
        gradients = [own.gradients(self.layers[name]) for name, own in seen.items()]
        if self.sharing == "reduce":
            gradients = [g.sum(-1, keepdim=True) for g in gradients]
        scales = [1 / (g.shape[1] * g.shape[-1]) for g in gradients]
        operands = [partial(torch.flatten, g, 0, 1) for g in gradients]
        accel.gram(operands, scales, [self.buffer.estimate(f"{name}.G") for name in seen])
        if self.units is not None:
            root = self.units.to(self.buffer.estimates.dtype).sqrt()
            for key, factor in (("A", root), ("G", 1 / root)):
                torch._foreach_mul_([self.buffer.estimate(f"{n}.{key}") for n in seen], factor)

    def restart_head(self, when: Tensor) -> None:
        """The head's G starts again; its A goes on."""
        if self.head is not None:
            self._restart(f"{self.head.name}.G", when)

    def factor_eigenvalues(self, layer: MatrixLayer) -> tuple[Tensor, Tensor]:
        """Those of A, ``(groups, d_in)``, and of G, ``(groups, outputs with a class)``."""
        values_a, _ = linalg.eigen(self.buffer.average(f"{layer.name}.A"), name=layer.name)
        values_g, _ = linalg.eigen(self.buffer.average(f"{layer.name}.G"), name=layer.name)
        if self.head is not None and layer.name == self.head.name:
            # Spare outputs have zero curvature and come first in ascending order.
            values_g = values_g[:, max(0, values_g.shape[1] - int(self.head.active)) :]
        return values_a, values_g


class KroneckerBlocks(FactorBlocks):
    """A ⊗ G, each factor damped, balanced by π."""

    _ranks: accel.Ranks | None = None

    def allocate(self) -> None:
        """Make an empty buffer, and the tables of the operations on it."""
        super().allocate()
        few = {
            name: layer.module
            for name, layer in self.layers.items()
            if (layer.is_linear or layer.parts > 1) and not layer.by_function
        }
        self.rows = accel.RowRecorder(few)
        self._pairs = {
            name: accel.Pair(
                name, layer.own_groups, layer.d_in, layer.d_out, name in few, layer.parts
            )
            for name, layer in self.layers.items()
        }
        like = self.buffer.averages
        sizes = [shape[-1] for shape in self.buffer.shapes.values()]
        self._dims = torch.tensor(sizes, dtype=like.dtype, device=like.device)
        self._inverses = accel.SharedInverses(tuple(self._pairs.values()), self._ranks)

    def share(self, ranks: accel.Ranks) -> None:
        """Each rank may invert the factors of some layers only."""
        self._ranks = ranks
        self.allocate()

    def following(self) -> AbstractContextManager[None]:
        """Record the rows of linear layers where that makes :meth:`precondition_` faster."""
        return self.rows.recording()

    def renew(
        self, seen: Mapping[str, Seen], ema: Tensor | float, damping: Tensor | float
    ) -> Tensor:
        """Average, damp and invert all factors."""
        skipped = self.ready - seen.keys()  # their averages stay, and are damped as the others
        for name in self._names(skipped):
            self.buffer.estimate(name).copy_(self.buffer.average(name))
        pairs = tuple(p for name, p in self._pairs.items() if name in seen or name in skipped)
        rates = self._rates(ema)
        ok = accel.mix_and_damp(self.buffer, pairs, rates, self._current_dims(), damping)
        self._count(seen, ok)
        return torch.stack([ok, self._inverses.invert(self.buffer, pairs) == 0])

    def _current_dims(self) -> Tensor:
        """The dimension of each factor; of the head's G only outputs that stand for a class."""
        if self.head is not None:
            self._dims[self.buffer.index(f"{self.head.name}.G")].copy_(self.head.active)
        return self._dims

    def prepare(self, damping: Tensor | float) -> Tensor:
        """Damp and invert the averages as they are."""
        pairs = tuple(self._pairs[name] for name in self.layers if name in self.ready)
        self.buffer.estimates.copy_(self.buffer.averages)
        rates = torch.ones(len(self.buffer.shapes), dtype=torch.float64, device=self._dims.device)
        accel.mix_and_damp(self.buffer, pairs, rates, self._current_dims(), damping)
        return self._inverses.invert(self.buffer, pairs)

    def precondition_(self) -> None:
        """Multiply the gradients with the inverses of A and G."""
        layers = {n: m for n, m in self.layers.items() if n in self.ready and m.has_gradient}
        if not layers:
            return
        gradients = [
            accel.LayerGradient(self._pairs[name], layer.gradient, self._rows(layer))
            for name, layer in layers.items()
        ]
        results = self._inverses.precondition(self.buffer, gradients)
        for layer, result in zip(layers.values(), results, strict=True):
            layer.replace_gradient(result)

    def _rows(self, layer: MatrixLayer) -> accel.Rows | None:
        rows = self.rows.rows(layer.name)
        if rows is None:
            return None
        x, g = rows
        x = x[:, : layer.size + layer.has_bias]  # the module may have a bias without curvature
        return (x if layer.parts == 1 else layer.split_rows(x)), g

    def eigenvalues(self, layer: MatrixLayer, damping: float) -> Tensor:
        """Products of the eigenvalues of A and G, each damped."""
        values_a, values_g = self.factor_eigenvalues(layer)
        means = values_a.mean(-1), values_g.mean(-1)
        of_a, of_g = accel.damping_levels(*means, layer.parts, damping)
        values_a, values_g = values_a + of_a.unsqueeze(-1), values_g + of_g.unsqueeze(-1)
        return (values_g.unsqueeze(-1) * values_a.unsqueeze(-2)).flatten().sort().values


class ExactKroneckerBlocks(FactorBlocks):
    """A ⊗ G + τI, inverted in the eigenbases of A and G; it cannot be recorded as a CUDA graph."""

    def prepare(self, damping: Tensor | float) -> Tensor:
        """Decompose the averages."""
        solved = self.buffer.derived.setdefault("solved", {})
        for name in self.ready:
            parts = (self.buffer.average(f"{name}.{key}") for key in ("A", "G"))
            (values_a, a), (values_g, g) = (linalg.eigen(p, name=f"layer {name!r}") for p in parts)
            solved[name] = a, g, values_g.unsqueeze(-1) * values_a.unsqueeze(-2) + damping
        bad = [(denominator <= 0).any() for _, _, denominator in solved.values()]
        return torch.stack(bad).sum()

    def precondition_(self) -> None:
        """Divide the gradients in the eigenbases."""
        for name, (u_a, u_g, denominator) in self.buffer.derived.get("solved", {}).items():
            divide_in_basis_(self.layers[name], u_a, u_g, denominator)

    def eigenvalues(self, layer: MatrixLayer, damping: float) -> Tensor:
        """Products of the eigenvalues of A and G, damped."""
        values_a, values_g = self.factor_eigenvalues(layer)
        products = values_g.unsqueeze(-1) * values_a.unsqueeze(-2) + damping
        return products.flatten().sort().values


def divide_in_basis_(layer: MatrixLayer, u_a: Tensor, u_g: Tensor, denominator: Tensor) -> None:
    """∇ ← U_G ((U_Gᵀ ∇ U_A) / denominator) U_Aᵀ, if the layer has a gradient.

    The bases are ``(groups, d_in, d_in)`` and ``(groups, d_out, d_out)``, the denominator
    ``(groups, d_out, d_in)``.
    """
    if layer.has_gradient:
        rotated = u_g.mT @ layer.gradient().to(u_g.dtype) @ u_a / denominator
        layer.replace_gradient(u_g @ rotated @ u_a.mT)


@dataclass(eq=False, repr=False)
class KFAC(LayerCurvature):
    """Preconditions gradients with a damped, averaged K-FAC approximation of the Fisher.

    Linear layers and convolutions get Kronecker factors, embeddings a diagonal.

    Example::

        kfac = KFAC(model, damping=1e-3, ema=0.1)
        with kfac.record():
            logits = model(x)
        kfac.update(logits)
        loss(logits, y).backward()
        kfac.precondition_()
        optimizer.step()
    """

    damping_kind: Literal["factored", "exact"] = field(default="factored", kw_only=True)
    """``"factored"`` damps A and G each, balanced by π; ``"exact"`` inverts A ⊗ G + τI in the
    eigenbases."""

    factor_scale: Literal["none", "outputs"] = field(default="none", kw_only=True)
    """``"outputs"`` averages A·√K and G/√K, with K units of the head at the time of the estimate. π
    cancels it while K stays. nngeometry does so, on which the code of OCAR's authors builds."""

    def _make_blocks(self) -> list[Blocks[Any]]:
        blocks = super()._make_blocks()
        if self.factor_scale == "outputs" and self._head is not None:
            for block in blocks:
                if isinstance(block, FactorBlocks):
                    block.units = self._head.active
        return blocks

    def kinds(self) -> Mapping[type[Layer], type[Blocks[Any]]]:
        """Kronecker factors, small matrices, a diagonal."""
        factored = self.damping_kind == "factored"
        return {
            MatrixLayer: KroneckerBlocks if factored else ExactKroneckerBlocks,
            NormLayer: UnitBlocks,
            DiagonalLayer: DiagonalBlocks,
        }
