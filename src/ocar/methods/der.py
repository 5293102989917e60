"""DER and DER++: dark experience replay, by stored logits.

Buzzega et al., "Dark Experience for General Continual Learning: a Strong, Simple
Baseline" (NeurIPS 2020). Beside a sample x' the memory keeps the logits z that the
model gave it once its batch was learned, and replay holds the model to them:

    CE(new) + α d(f(x'), z) + β CE(f(x''), y''),

with β = 0 for DER. The logits are taken in eval mode of the sample without
augmentation, and are never renewed; in replay the sample is augmented afresh.
One forward pass serves all terms.

Where the paper and the code with which the published tables were made differ,
each is a named option. The defaults follow the code: d is the squared difference
averaged over samples and classes, while the paper's squared norm sums over
classes; x' and x'' are the same samples, while the paper draws them separately.

The head may be told all classes, as in the published tables. Where it grows, z
covers the classes that were known when it was stored, and d is over these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ocar.config import require, require_one_of
from ocar.methods.context import Context
from ocar.methods.objective import Begun, Forward, Objective, Outcome, Step
from ocar.methods.settings import LearnerSettings
from ocar.models.head import mask_logits

Distance = Literal["mean", "norm"]


@dataclass(frozen=True, kw_only=True)
class DERSettings(LearnerSettings):
    """Settings of DER."""

    extras = ("logits", "known")

    alpha: float = 0.1
    """Weight of the distance to the stored logits."""

    distance: Distance = "mean"
    """Squared difference averaged over samples and classes (the published code), or summed over
    classes, the squared norm (the paper)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("alpha", self.alpha, 0 <= self.alpha < float("inf"), "at least 0")
        require_one_of("distance", self.distance, ("mean", "norm"))
        fits = self.likelihood == "categorical"
        require("likelihood", self.likelihood, fits, "'categorical': a regression has no logits")

    @property
    def draws(self) -> tuple[int, ...]:
        """One draw; nothing where the distance has no weight."""
        return (self.replay_batch if self.alpha else 0,)

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy of the new, and the distance to the stored logits."""
        return DarkReplay(context, alpha=self.alpha, beta=0.0, distance=self.distance)


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
        require("beta", self.beta, 0 <= self.beta < float("inf"), "at least 0")
        require_one_of("labels_from", self.labels_from, ("same", "own"))

    @property
    def draws(self) -> tuple[int, ...]:
        """One draw, or one for each term; nothing where a term has no weight."""
        if self.labels_from == "own":
            return tuple(self.replay_batch if weight else 0 for weight in (self.alpha, self.beta))
        return (self.replay_batch if self.alpha or self.beta else 0,)

    def make_objective(self, context: Context) -> Objective:
        """DER's, and the cross-entropy of replayed samples."""
        return DarkReplay(context, alpha=self.alpha, beta=self.beta, distance=self.distance)


class DarkReplay(Objective):
    """CE(new) + α d(f(x'), z) + β CE(f(x''), y''), in one forward pass.

    With one draw from memory x'' is x', with two it is the second.

    Args:
        context: The parts of the learner.
        alpha: Weight of the distance to the stored logits.
        beta: Weight of the cross-entropy of replayed samples.
        distance: What the distance averages over.
    """

    def __init__(self, context: Context, *, alpha: float, beta: float, distance: Distance) -> None:
        assert context.head is not None
        self.context = context
        self.head = context.head
        self.alpha = alpha
        self.beta = beta
        self.distance = distance

    def begin(self, batch: Begun) -> Sequence[float]:
        """Before the steps, so that stored logits are as wide as the outputs are now."""
        self._make_room()
        return ()

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        assert step.active is not None
        outputs = forward(step.x)
        masked, new = mask_logits(outputs, step.active), step.new
        loss = functional.cross_entropy(masked[:new], step.y[:new])
        held = step.draws[0]
        if self.alpha and held:
            logits, known = (step.extras[name][:held] for name in ("logits", "known"))
            replayed = outputs[new : new + held]
            apart = squared_distance(replayed, logits, known, kind=self.distance)
            loss = loss + self.alpha * apart
        labelled = new + held if len(step.draws) > 1 else new
        if self.beta and labelled < len(outputs):
            replay = functional.cross_entropy(masked[labelled:], step.y[labelled:])
            loss = loss + self.beta * replay
        return Outcome(loss=loss, outputs=outputs)

    def extras(self, x: Tensor) -> dict[str, Tensor]:
        """The logits of samples as they are, in eval mode, and how many classes they cover."""
        self._make_room()
        with self.context.evaluating():
            logits = self.context.model(self.context.normalize(x))
        known = torch.full(logits.shape[:1], len(self.head.classes), device=logits.device)
        return {"logits": logits, "known": known}

    def _make_room(self) -> None:
        """Where the head has grown, the learner also forgets the graphs that read the column."""
        self.context.memory.widen_extra("logits", self.head.capacity)


def squared_distance(outputs: Tensor, logits: Tensor, known: Tensor, *, kind: Distance) -> Tensor:
    """Squared difference over the classes that were known when logits were stored.

    Args:
        outputs: Outputs of replayed samples now, ``(n, outputs)``.
        logits: Those that were stored, ``(n, outputs)``.
        known: How many of them, from the first, stand for a class, ``(n,)`` of integers.
        kind: ``"mean"`` over all pairs of a sample and a class, or ``"norm"``: the sum over
            classes, averaged over samples.
    """
    covered = torch.arange(outputs.shape[1], device=outputs.device) < known[:, None]
    squares = torch.where(covered, (outputs - logits).square(), 0.0)
    return squares.sum(1).mean() if kind == "norm" else squares.sum() / known.sum()
