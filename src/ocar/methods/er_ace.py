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
from torch.nn import functional

from ocar.config import require
from ocar.methods.context import Context
from ocar.methods.objective import Forward, Objective, Outcome, Step
from ocar.methods.settings import LearnerSettings
from ocar.models.head import mask_logits


@dataclass(frozen=True, kw_only=True)
class ERACESettings(LearnerSettings):
    """Settings of ER-ACE."""

    remembers_first = True

    alpha: float = 0.5
    """Weight α of the new samples; replayed samples have weight 1 − α."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("alpha", self.alpha, 0 <= self.alpha <= 1, "in [0, 1]")
        fits = self.likelihood == "categorical"
        require("likelihood", self.likelihood, fits, "'categorical': a regression has no classes")

    def make_objective(self, context: Context) -> Objective:
        """The asymmetric cross-entropy."""
        return AsymmetricCrossEntropy(self.alpha)


class AsymmetricCrossEntropy(Objective):
    """α CE(new; classes in the batch) + (1 − α) CE(replay; classes seen).

    Args:
        alpha: Weight of the new samples.
    """

    joint = False

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step; plain cross-entropy if nothing is replayed."""
        assert step.active is not None
        new, y_new, y_old = step.new, step.y[: step.new], step.y[step.new :]
        outputs = forward(step.x[:new])
        if not step.replayed:
            loss = functional.cross_entropy(mask_logits(outputs, step.active), y_new)
            return Outcome(loss=loss, outputs=None)
        present = torch.zeros_like(step.active).index_fill_(0, y_new, True)
        loss = self.alpha * functional.cross_entropy(mask_logits(outputs, present), y_new)
        replayed = mask_logits(forward(step.x[new:]), step.active)
        loss = loss + (1 - self.alpha) * functional.cross_entropy(replayed, y_old)
        return Outcome(loss=loss, outputs=None)
