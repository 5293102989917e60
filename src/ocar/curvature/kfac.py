"""K-FAC: a Kronecker-factored approximation of the Fisher, layer by layer.

Martens & Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate
Curvature" (ICML 2015). The Fisher of a layer is approximated by A ⊗ G, the second
moments of its inputs and of its output gradients, so that

    (A ⊗ G)⁻¹ ∇ = G⁻¹ ∇ A⁻¹.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ocar.config import require_one_of
from ocar.curvature.blocks import (
    Blocks,
    DiagonalBlocks,
    ExactKroneckerBlocks,
    KroneckerBlocks,
    UnitBlocks,
)
from ocar.curvature.layers import EmbeddingLayer, Layer, MatrixLayer, NormLayer
from ocar.curvature.layerwise import LayerCurvature


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

    def __post_init__(self) -> None:
        require_one_of("damping_kind", self.damping_kind, ("factored", "exact"))
        super().__post_init__()

    def kinds(self) -> Mapping[type[Layer], type[Blocks[Any]]]:
        """Kronecker factors, small matrices, a diagonal."""
        factored = self.damping_kind == "factored"
        return {
            MatrixLayer: KroneckerBlocks if factored else ExactKroneckerBlocks,
            NormLayer: UnitBlocks,
            EmbeddingLayer: DiagonalBlocks,
        }
