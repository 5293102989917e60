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

from dataclasses import dataclass, fields

from ocar.config import require_range
from ocar.methods.context import Context
from ocar.methods.curvature_settings import CurvatureSettings
from ocar.methods.objective import Objective
from ocar.methods.ocar import OCARSettings
from ocar.methods.transform import Transform


@dataclass(frozen=True, kw_only=True)
class NGDSettings(CurvatureSettings):
    """Settings of the natural gradient."""

    damping: float
    """τ, the same in every step."""

    ema: float
    """Weight of a new estimate in the moving average of the curvature (α_EMA)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "larger than 0", "damping")
        require_range(self, "in (0, 1]", "ema")

    def as_ocar(self) -> OCARSettings:
        """The equivalent settings of OCAR: λ and τ never change."""
        shared = {field.name: getattr(self, field.name) for field in fields(CurvatureSettings)}
        return OCARSettings(
            tau=self.damping,
            tau_step=0.0,
            ema=self.ema,
            replay_weight="lambda",
            increments="domains",
            **shared,
        )

    def make(self, context: Context, objective: Objective) -> Transform:
        """The natural gradient for a learner."""
        return self.as_ocar().make(context, objective)
