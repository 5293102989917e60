"""Natural gradient descent with replay: OCAR without its stability constraint.

Amari, "Natural gradient works efficiently in learning", Neural Computation 10(2)
(1998). The step is

    w ← w − α (F̄ + τI)⁻¹ ∇L̄,

with L̄ the mean loss of the joint batch and F̄ the Fisher information of the
model's own predictions on it, averaged over time. It is the step of
:mod:`ocar.methods.ocar` with the same weight for new and replayed samples and
a constant damping τ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ocar.config import require
from ocar.curvature import Curvature
from ocar.methods.context import Context
from ocar.methods.objective import Objective
from ocar.methods.ocar import OCARSettings
from ocar.methods.transform import Transform, TransformSettings


@dataclass(frozen=True, kw_only=True)
class NGDSettings(TransformSettings):
    """Settings of the natural gradient; any objective with a prediction goes with it."""

    needs_predictions = True

    damping: float
    """τ, the same in every step."""

    ema: float
    """Weight of a new estimate in the moving average of the curvature (α_EMA)."""

    curvature: str | Curvature = "kfac"
    """Kind of curvature, as for OCAR."""

    fisher: str = "sketched(2)"
    """Root of the Fisher, see :mod:`ocar.curvature.fisher`."""

    fisher_passes: Literal["first", "every"] = "first"
    """Renew the curvature on the first pass over a stream batch, or on every pass."""

    fisher_forward: Literal["shared", "own"] = "shared"
    """Take the Fisher from the forward pass of the loss, or from one more."""

    damping_kind: Literal["factored", "exact"] = "factored"
    """Damp each Kronecker factor, balanced by π, or A ⊗ G + τI."""

    sharing: Literal["expand", "reduce"] = "expand"
    """How locations of a layer with shared weights count, see :mod:`ocar.curvature.blocks`."""

    norm_layers: bool = False
    """Precondition normalisation layers too."""

    track_norms: bool = False
    """Report the ratio of gradient norms after and before."""

    def __post_init__(self) -> None:
        require("damping", self.damping, 0 < self.damping < float("inf"), "larger than 0")
        self.as_ocar()

    def as_ocar(self) -> OCARSettings:
        """The settings of OCAR that do the same: λ and τ never change."""
        return OCARSettings(
            tau=self.damping,
            tau_step=0.0,
            replay_weight="lambda",
            increments="domains",
            ema=self.ema,
            curvature=self.curvature,
            fisher=self.fisher,
            fisher_passes=self.fisher_passes,
            fisher_forward=self.fisher_forward,
            damping_kind=self.damping_kind,
            sharing=self.sharing,
            norm_layers=self.norm_layers,
            track_norms=self.track_norms,
        )

    def make(self, context: Context, objective: Objective) -> Transform:
        """The natural gradient for a learner."""
        return self.as_ocar().make(context, objective)
