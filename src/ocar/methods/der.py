"""DER and DER++: dark experience replay, by stored logits.

Buzzega et al., "Dark Experience for General Continual Learning: a Strong, Simple
Baseline" (NeurIPS 2020). The memory stores with each sample x' the logits z that the
model gave it after learning its batch. Replay keeps the model close to them:

    CE(new) + α d(f(x'), z) + β CE(f(x''), y''),

with β = 0 for DER. The logits come from the model in eval mode, for the sample
without augmentation, and are never renewed. Replayed samples are augmented anew.
One forward pass serves all terms.

The paper differs from the code behind the published tables, and each variant is a
named option. The defaults follow the code. There d is the squared difference
averaged over samples and classes; the paper's squared norm sums over classes. And x'
and x'' are the same samples; the paper draws them separately.

The published tables use a head with all classes from the start. With a head that
grows, z covers the classes known when it was stored, and d is over these classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ocar.config import require_range
from ocar.methods.context import Context
from ocar.methods.objective import (
    Begun,
    ClassObjective,
    Forward,
    Objective,
    Outcome,
    Step,
    mean_loss,
)
from ocar.methods.settings import LearnerSettings
from ocar.structure import Inputs

Distance = Literal["mean", "norm"]


@dataclass(frozen=True, kw_only=True)
class DERSettings(LearnerSettings):
    """Settings of DER."""

    extras = ("logits", "known")
    no_regression = "a regression has no logits"

    alpha: float = 0.1
    """Weight of the distance to the stored logits."""

    distance: Distance = "mean"
    """Squared difference averaged over samples and classes (the published code), or summed over
    classes, the squared norm (the paper)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 0", "alpha")

    @property
    def draws(self) -> tuple[int, ...]:
        """One draw; nothing if the distance has weight 0."""
        return (self.replay_batch if self.alpha else 0,)

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy of new samples, and the distance to the stored logits."""
        return DarkReplay(self, context, beta=0.0)


@dataclass(frozen=True, kw_only=True)
class DERPlusPlusSettings(DERSettings):
    """Settings of DER++."""

    beta: float = 0.5
    """Weight of the cross-entropy of replayed samples."""

    labels_from: Literal["same", "own"] = "same"
    """The cross-entropy is of the samples whose logits are replayed (the published code), or of a
    draw of its own (the paper)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 0", "beta")

    @property
    def draws(self) -> tuple[int, ...]:
        """One draw, or one for each term; nothing for a term with weight 0."""
        if self.labels_from == "own":
            return tuple(self.replay_batch if weight else 0 for weight in (self.alpha, self.beta))
        return (self.replay_batch if self.alpha or self.beta else 0,)

    def make_objective(self, context: Context) -> Objective:
        """The loss of DER, and the cross-entropy of replayed samples."""
        return DarkReplay(self, context, beta=self.beta)


class DarkReplay(ClassObjective[DERSettings]):
    """CE(new) + α d(f(x'), z) + β CE(f(x''), y''), in one forward pass.

    With one draw from memory x'' is x'; with two draws x'' is the second.
    """

    def __init__(self, settings: DERSettings, context: Context, *, beta: float) -> None:
        super().__init__(settings, context)
        self.beta = beta

    def begin(self, batch: Begun) -> Sequence[float]:
        """Make the stored logits as wide as the outputs."""
        self.context.memory.widen_extra("logits", self.head.capacity)
        return ()  # the learner forgets graphs that read the column whenever the head grows

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        outputs, new, held = forward(step.x), step.new, step.draws[0]
        loss = mean_loss(outputs[:new], step.y[:new], step.active)
        if self.settings.alpha and held:
            logits, known = (step.extras[name][:held] for name in ("logits", "known"))
            replayed = outputs[new : new + held]
            apart = squared_distance(replayed, logits, known, kind=self.settings.distance)
            loss = loss + self.settings.alpha * apart
        labelled = new + held if len(step.draws) > 1 else new
        if self.beta and labelled < len(outputs):
            replay = mean_loss(outputs[labelled:], step.y[labelled:], step.active)
            loss = loss + self.beta * replay
        return Outcome(loss=loss, outputs=outputs)

    def extras(self, x: Inputs) -> dict[str, Tensor]:
        """The logits of samples in eval mode, and how many classes they cover."""
        self.context.memory.widen_extra("logits", self.head.capacity)
        with self.context.evaluating():
            logits = self.context.forward_shared(self.context.normalize(x))
        known = torch.full(logits.shape[:1], len(self.head.classes), device=logits.device)
        return {"logits": logits.to(self.context.dtype), "known": known}  # autocast may end


def squared_distance(outputs: Tensor, logits: Tensor, known: Tensor, *, kind: Distance) -> Tensor:
    """Squared difference over the classes that were known when logits were stored.

    Args:
        outputs: Outputs of replayed samples now, ``(n, outputs)``.
        logits: Stored outputs, ``(n, outputs)``.
        known: How many of these, from the first, stand for a class, ``(n,)`` of integers.
        kind: ``"mean"`` over all pairs of a sample and a class, or ``"norm"``: the sum over
            classes, averaged over samples.
    """
    covered = torch.arange(outputs.shape[1], device=outputs.device) < known[:, None]
    squares = torch.where(covered, (outputs - logits).square(), 0.0)
    return squares.sum(1).mean() if kind == "norm" else squares.sum() / known.sum()
