"""Experience replay: SGD on new and replayed samples together.

Chaudhry et al., "On tiny episodic memories in continual learning" (2019). The
step minimises the mean cross-entropy of the joint batch,

    w ← w − α ∇ 1/(n+m) (Σ_new CE + Σ_replay CE),

with a replay batch drawn uniformly from the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ocar.methods.context import Context
from ocar.methods.objective import Objective, PredictionLoss
from ocar.methods.settings import LearnerSettings


@dataclass(frozen=True, kw_only=True)
class ERSettings(LearnerSettings):
    """Settings of experience replay; it has none of its own."""

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy, or the loss of a regression."""
        return PredictionLoss(context.scale)
