"""Distillation from slow weights, added to the loss of any method.

The slow weights are a moving average of the model's parameters and BatchNorm statistics, updated
after every stream batch, see :mod:`ocar.averaging`. They remember more of the past than the model,
and change less from batch to batch. Michel et al., "Rethinking Momentum Knowledge Distillation in
Online Continual Learning" (ICML 2024), add such a teacher to methods of replay. The method
``ocar-slow`` is OCAR with this teacher. Both models predict; the head of the fast one is solved for
on the memory, see :mod:`ocar.closed_form`.

The loss of a step gets the term

    w T² 1/n Σᵢ KL(qᵢ ‖ pᵢ),    p = softmax(z/T),  q = softmax(z'/T),

over the n samples whose predictions are in the loss. Here z are the logits of the classes seen, as
in the loss, and z' the logits of the slow weights for the same augmented inputs, in eval mode. If
only replayed samples are distilled, the others add nothing and n is unchanged. In regression the
divergence is ½‖f − f'‖².

The curvature. With T = 1 the second derivative of KL(q ‖ p) in the logits is diag(p) − ppᵀ for
every q. The cross-entropy has the same second derivative. So the Fisher of the model on these
samples is the curvature of each term, and 1 + w times the Fisher is the curvature of the sum
(``distill_curvature=True``). By default OCAR uses the Fisher itself. It bounds how far the
predictions move, not the curvature of the loss, and OCAR's learning rate was selected for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ocar import accel
from ocar.methods.er import ERSettings
from ocar.methods.lwf import divergence
from ocar.methods.objective import Forward, Objective, Outcome, Step, sample_losses
from ocar.methods.settings import LearnerSettings, Prediction
from ocar.methods.student_t import ResidualScale
from ocar.structure import Inputs, Mirror


@dataclass(frozen=True, kw_only=True)
class SlowERSettings(ERSettings):
    """Settings of replay with slow weights that teach, and predict with the weights."""

    prediction: Prediction = "both"
    """Predict with the mean of both models' probabilities, or as any method can."""

    distillation: float = 1.0
    """Weight of the divergence from the predictions of the slow weights in the loss."""

    distill_on: Literal["all", "replayed"] = "replayed"
    """Whether new samples are distilled too: the slow weights do not know new classes yet."""

    closed_form_head: bool | None = None
    """Predict with a head that is solved for on the memory, where that is possible."""

    slow_warmup: float = 10.0
    """c: the slow weights move by c / (b + c) as long as this is more than ``slow_rate``, after b
    stream batches."""

    mirror: Mirror = "too"
    """Both models predict the mirror image too, where ``augment`` mirrors; or as any method can."""

    replay_batch: int = 20
    """Replayed samples a gradient step."""

    new_share: float | None = 0.5
    """Share of the new samples in the mean loss, and in OCAR's curvature."""


class Distillation:
    """Calls an objective, and adds the divergence from a teacher to its loss.

    Args:
        settings: Weight, temperature and which samples are distilled.
        teacher: From inputs of the model to outputs, without gradients.
        residuals: The scale of the residuals of a Student-t likelihood; None for another.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        teacher: Callable[[Inputs], Tensor],
        residuals: ResidualScale | None = None,
    ) -> None:
        self.residuals = residuals
        self.settings = settings
        self.teacher = teacher

    def __call__(self, objective: Objective, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        outputs: list[Tensor] = []
        targets: list[Tensor] = []
        first = 0 if self.settings.distill_on == "all" else step.new  # of the rows to distil

        def with_teacher(x: Inputs) -> Tensor:
            nonlocal first
            if not torch.is_grad_enabled():  # samples are chosen, not learned
                return forward(x)
            skipped = min(first, len(x))
            first -= skipped
            side = accel.Side()  # also where a curvature is recorded: the teacher has no gradients
            if skipped < len(x):
                targets.append(side.run(partial(self.teacher, x[skipped:])))
            own = forward(x)
            side.join()
            outputs.append(own[skipped:])
            return own

        outcome = objective(with_teacher, step)
        if not targets:
            return outcome
        loss = self._loss(torch.cat(outputs), torch.cat(targets), step)
        return replace(outcome, loss=outcome.loss + self.settings.distillation * loss)

    def _loss(self, outputs: Tensor, targets: Tensor, step: Step) -> Tensor:
        """The divergence of the samples that are distilled, in a mean over all."""

        def mean(own: Tensor, wanted: Tensor) -> Tensor:
            if step.active is None:
                return sample_losses(own, wanted, None, self.residuals).mean()
            temperature = self.settings.distill_temperature
            return divergence(wanted, own, step.active, temperature=temperature) * temperature**2

        if self.settings.distill_on == "all":
            return step.mean(mean, outputs, targets)
        count = len(outputs)
        return step.weights[1] * count / (step.new + count) * mean(outputs, targets)
