"""E-KFAC: K-FAC's eigenbasis with second moments measured in it.

George et al., "Fast Approximate Natural Gradient Descent in a Kronecker-factored
Eigenbasis" (NeurIPS 2018). In the basis U_G ⊗ U_A of the factors' eigenvectors,
K-FAC approximates the curvature by products of eigenvalues. E-KFAC measures it,

    S = 1/n Σ_c Σ_n (U_Gᵀ ∇_cn U_A)²,    ∇_cn = Σ_l g_cnl a_nlᵀ,

which in a new basis is never further from the Fisher in the Frobenius norm, and divides by it:

    ∇ ← U_G ((U_Gᵀ ∇ U_A) / (S + D)) U_Aᵀ.

The damping D is what damping each factor adds in K-FAC,

    D = (λ_G + √τ/π)(λ_A + π√τ)ᵀ − λ_G λ_Aᵀ,

with the diagonals λ of A and G in the basis. So the same learning rate and τ suit both. τ alone,
``damping_kind="exact"``, damps far less, and steps are longer.

An eigendecomposition is expensive, and any orthogonal basis is valid. The first estimate gives the
first basis. It is renewed after 2, 4, 8 ... batches, while the factors change most, then every
``basis_every`` batches: what is off the diagonal in an old basis is missing in S, and steps are too
long. After a renewal S starts with the products of eigenvalues, as in K-FAC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ocar import accel
from ocar.accel import linalg
from ocar.config import require_options, require_range
from ocar.curvature.blocks import DiagonalBlocks, Seen, UnitBlocks
from ocar.curvature.kfac import FactorBlocks, divide_in_basis_
from ocar.curvature.layers import DiagonalLayer, Layer, MatrixLayer, NormLayer
from ocar.curvature.layerwise import LayerCurvature


class EigenBlocks(FactorBlocks):
    """A and G for the basis, and the second moments S in it.

    The buffer holds the basis as UA and UG minus the identity, so that zeros are the identity.
    ``every`` counts the batches between two bases; ``factored`` says how S is damped.
    """

    about = "Kronecker eigenbasis"
    stored = ("UA", "UG")

    def __init__(self, *others: Any, every: int, factored: bool, **options: Any) -> None:
        super().__init__(*others, **options)
        self.every, self.factored = every, factored

    def statistics(self, layer: MatrixLayer) -> dict[str, tuple[int, ...]]:
        """A, G, S of shape ``(groups, d_out, d_in)``, and the basis."""
        shapes = layer.shapes()
        size = (layer.groups, layer.d_out, layer.d_in)
        return shapes | {"S": size, "UA": shapes["A"], "UG": shapes["G"]}

    def basis(self, name: str) -> tuple[Tensor, Tensor]:
        """U_A and U_G of a layer."""
        stored = (self.buffer.average(f"{name}.{key}") for key in self.stored)
        u_a, u_g = (torch.eye(u.shape[-1], dtype=u.dtype, device=u.device) + u for u in stored)
        return u_a, u_g

    def is_due(self, batches: int) -> bool:
        """Every so many batches; before, after 2, 4, 8, ... while estimates change most."""
        return batches % self.every == 0 or (1 < batches < self.every and batches.bit_count() == 1)

    def refresh(self) -> None:
        """Renew the bases."""
        self._renew_bases(self.ready)

    def _renew_bases(self, layers: Iterable[str]) -> None:
        for name in layers:
            values = []
            for key, stored in zip(("A", "G"), self.stored, strict=True):
                average = self.buffer.average(f"{name}.{key}")
                own, vectors = linalg.eigen(average, name=f"layer {name!r}")
                vectors.diagonal(dim1=1, dim2=2).sub_(1.0)
                self.buffer.average(f"{name}.{stored}").copy_(vectors)
                values.append(own)
            products = values[1].unsqueeze(-1) * values[0].unsqueeze(-2)
            self.buffer.average(f"{name}.S").copy_(products)

    def estimate(self, seen: Mapping[str, Seen]) -> None:
        """G, and the second moments of each sample's gradient in the present basis."""
        super().estimate(seen)
        for name, own in seen.items():
            layer, (u_a, u_g) = self.layers[name], self.basis(name)
            # The gradient of a sample is a sum over its locations, however A and G count them, and
            # its weight is in g.
            a = u_a.mT @ own.inputs(layer).to(u_a.dtype)  # (n, groups, d_in, L)
            g = u_g.mT @ own.gradients(layer).to(u_g.dtype)  # (columns, n, groups, d_out, L)
            moments = (g @ a.mT).square().sum(0).mean(0)
            self.buffer.estimate(f"{name}.S").copy_(moments)

    def restart_head(self, when: Tensor) -> None:
        """The head's G and S start again."""
        super().restart_head(when)
        if self.head is not None:
            self._restart(f"{self.head.name}.S", when)

    def _count(self, seen: Mapping[str, Seen], ok: Tensor) -> None:
        """The first estimate of a layer gives its first basis."""
        first = seen.keys() - self.ready
        super()._count(seen, ok)
        if first and not accel.is_recording():
            self._renew_bases(first)

    def prepare(self, damping: Tensor | float) -> Tensor:
        """The denominators S + D."""
        none = self._damp_averages(damping)
        for name in self.ready if self.factored else ():
            self._denominators(name).add_(self._between(name, damping))
        return none

    def _denominators(self, name: str) -> Tensor:
        return self.buffer.view(self.buffer.derived["damped"], f"{name}.S")

    def _between(self, name: str, damping: Tensor | float) -> Tensor:
        """D − τ."""
        layer, averages = self.layers[name], (self.buffer.average(f"{name}.{key}") for key in "AG")
        pairs = zip(averages, self.basis(name), strict=True)
        values_a, values_g = ((average @ u * u).sum(-2) for average, u in pairs)
        head = self.head
        outputs = head.active if head is not None and name == head.name else layer.d_out
        means = values_a.mean(-1), values_g.sum(-1) / outputs
        levels = accel.damping_levels(*means, layer.parts, damping)
        of_a, of_g = (level[:, None, None] for level in levels)
        return of_g * values_a.unsqueeze(-2) + of_a * values_g.unsqueeze(-1)

    def precondition_(self) -> None:
        """Divide the gradients in the eigenbasis."""
        for name in self.ready:
            divide_in_basis_(self.layers[name], *self.basis(name), self._denominators(name))

    def eigenvalues(self, layer: MatrixLayer, damping: float) -> Tensor:
        """The damped second moments."""
        damped = self.buffer.average(f"{layer.name}.S") + damping
        if self.factored:
            damped = damped + self._between(layer.name, damping)
        return damped.flatten().sort().values

    def _saved(self, name: str, average: Tensor, *, back: bool = False) -> Tensor:
        layer, _, key = name.rpartition(".")
        dims = {"A": (1, 2), "UA": (1,)}.get(key, ())  # S is of eigenvectors, not of inputs
        one = torch.eye(average.shape[-1]).to(average) if key in self.stored else 0.0
        if back:
            return self.layers[layer].to_saved(average, dims, back=True) - one
        return self.layers[layer].to_saved(average + one, dims)


@dataclass(eq=False, repr=False)
class EKFAC(LayerCurvature):
    """Preconditions gradients with a damped, averaged E-KFAC approximation of the Fisher."""

    damping_kind: Literal["factored", "exact"] = field(default="factored", kw_only=True)
    """``"factored"`` damps as K-FAC does, ``"exact"`` adds τ."""

    basis_every: int = field(default=50, kw_only=True)
    """Batches between two eigenbases; the first come after 1, 2, 4, 8 ... batches."""

    def __post_init__(self) -> None:
        require_options(self)
        require_range(self, "at least 1", "basis_every")
        super().__post_init__()

    def kinds(self) -> Mapping[type[Layer], Any]:
        """Second moments in the eigenbasis, small matrices, a diagonal."""
        factored = self.damping_kind == "factored"
        eigen = partial(EigenBlocks, every=self.basis_every, factored=factored)
        return {MatrixLayer: eigen, NormLayer: UnitBlocks, DiagonalLayer: DiagonalBlocks}
