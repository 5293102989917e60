"""ER-ACE: asymmetric cross-entropy.

Caccia et al., "New Insights on Reducing Abrupt Representation Change in Online
Continual Learning" (ICLR 2022). New samples compete only with the classes of
their own batch, replayed samples with all classes seen:

    α CE(new; classes in the batch) + (1 − α) CE(replay; classes seen),

so that new classes do not push the features of old ones away. Each term has its
own forward pass. The weights α and 1 − α follow the code behind the published
tables; the paper has no weights, which is α = ½ up to a factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ocar.config import require_range
from ocar.methods.context import Context
from ocar.methods.objective import Forward, Objective, Outcome, Step, mean_loss
from ocar.methods.settings import LearnerSettings


@dataclass(frozen=True, kw_only=True)
class ERACESettings(LearnerSettings):
    """Settings of ER-ACE."""

    remembers_first = True
    no_regression = "a regression has no classes"

    alpha: float = 0.5
    """Weight α of the new samples; replayed samples have weight 1 − α."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "in [0, 1]", "alpha")

    def make_objective(self, context: Context) -> Objective:
        """The asymmetric cross-entropy."""
        return AsymmetricCrossEntropy(self.alpha)


class AsymmetricCrossEntropy(Objective):
    """α CE(new; classes in the batch) + (1 − α) CE(replay; classes seen)."""

    joint = False

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step; plain cross-entropy if nothing is replayed."""
        assert step.active is not None
        new, y_new, y_old = step.new, step.y[: step.new], step.y[step.new :]
        outputs = forward(step.x[:new])
        if not step.replayed:
            return Outcome(loss=mean_loss(outputs, y_new, step.active), outputs=None)
        present = torch.zeros_like(step.active).index_fill_(0, y_new, True)
        loss = self.alpha * mean_loss(outputs, y_new, present)
        replayed = mean_loss(forward(step.x[new:]), y_old, step.active)
        loss = loss + (1 - self.alpha) * replayed
        return Outcome(loss=loss, outputs=None)
