"""Experience replay: SGD on new and replayed samples together.

Chaudhry et al., "On tiny episodic memories in continual learning" (2019). The
step minimises the mean cross-entropy of the joint batch,

    w ← w − α ∇ 1/(n+m) (Σ_new CE + Σ_replay CE),

with a replay batch drawn uniformly from the memory. With ``new_share`` s it is
s times the mean of the new samples plus 1 − s times that of the replayed ones, so that a
larger replay batch does not slow down what is new.

With ``logit_adjustment`` λ the cross-entropy is that of z + λ log π, where z are the
logits and π is the expected share of each class in this loss, by the labels of the new
samples and of the memory. The present classes make up about half of it. Without the
adjustment they would be predicted too often. Predictions use z itself. See Menon et al.,
"Long-tail learning via logit adjustment" (ICLR 2021), and Huang et al., "Online
Continual Learning via Logit Adjusted Softmax" (TMLR 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ocar.config import require, require_range
from ocar.methods.context import Context
from ocar.methods.objective import (
    Begun,
    ClassObjective,
    Forward,
    Objective,
    Outcome,
    PredictionLoss,
    Step,
    mean_loss,
)
from ocar.methods.settings import LearnerSettings

RAREST = 1e-3
"""Least share of a class: one that has lost all its samples is not infinitely rare."""


@dataclass(frozen=True, kw_only=True)
class ERSettings(LearnerSettings):
    """Settings of experience replay."""

    logit_adjustment: float = 0.0
    """λ: how much the loss is corrected for the shares of the classes in the joint batch; 0 for not
    at all."""

    new_share: float | None = None
    """s: share of the new samples in the mean loss, and in OCAR's curvature; by default that of
    their number, one half for ten new and ten replayed samples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 0", "logit_adjustment")
        valid = self.new_share is None or 0 < self.new_share < 1
        require("new_share", self.new_share, valid, "between 0 and 1, or None")
        fits = self.likelihood == "categorical" or not self.logit_adjustment
        require("logit_adjustment", self.logit_adjustment, fits, "0: a regression has no classes")

    @property
    def share_of_new(self) -> float | None:
        """Share of the new samples in a mean over the joint batch; None to count all alike."""
        return self.new_share

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy, or the loss of a regression."""
        if self.logit_adjustment:
            return AdjustedCrossEntropy(self, context)
        return PredictionLoss(context.residuals)


class AdjustedCrossEntropy(ClassObjective[ERSettings]):
    """The mean cross-entropy of the joint batch for z + λ log π."""

    def begin(self, batch: Begun) -> Sequence[float]:
        """λ log π of each unit."""
        memory, units, new = self.context.memory, self.head.capacity, len(batch.units)
        shares = torch.bincount(torch.tensor(batch.units), minlength=units).double() / new
        replayed = min(self.settings.replay_batch, len(memory))
        if replayed and (self.settings.partial_replay or replayed == self.settings.replay_batch):
            held = torch.bincount(memory.labels, minlength=units).double() / len(memory)
            share = self.settings.new_share or new / (new + replayed)
            shares = share * shares + (1 - share) * held
        adjustment: list[float] = (
            self.settings.logit_adjustment * shares.clamp_min(RAREST).log()
        ).tolist()
        return adjustment

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step, of adjusted outputs; the outcome has the plain ones."""
        outputs = forward(step.x)
        adjusted = outputs + step.own_numbers.to(outputs.dtype)
        loss = step.mean(lambda own, y: mean_loss(own, y, step.active), adjusted, step.y)
        return Outcome(loss=loss, outputs=outputs)
