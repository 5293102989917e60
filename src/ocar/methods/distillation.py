"""Distillation from slow weights, added to the loss of any method.

To the loss of a step it adds

    w T² 1/n Σᵢ KL(qᵢ ‖ pᵢ),    p = softmax(z/T),  q = softmax(z'/T),

over the n samples whose predictions are in the loss, where z are the logits of the classes seen, as
the loss has them, and z' those of the slow weights for the same augmented inputs, in eval mode. If
only replayed samples are distilled the others add nothing, and n stays. In regression the
divergence is ½‖f − f'‖². The slow weights are in :mod:`ocar.averaging`.

The curvature. With T = 1 the second derivative of KL(q ‖ p) in the logits is diag(p) − ppᵀ for
every q, which is also that of the cross-entropy. So the Fisher of the model on these samples is the
curvature of both terms, and 1 + w times this Fisher is that of their sum
(``distill_curvature=True``). By default OCAR keeps the Fisher itself: it bounds how far the
predictions move, not how curved the loss is, and its learning rate was selected for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ocar import accel
from ocar.methods.lwf import divergence
from ocar.methods.objective import Forward, Objective, Outcome, Step, sample_losses
from ocar.methods.settings import LearnerSettings


class Distillation:
    """Calls an objective, and adds the divergence from a teacher to its loss.

    Args:
        settings: Weight, temperature and which samples are distilled.
        teacher: From inputs of the model to outputs, without gradients.
    """

    def __init__(self, settings: LearnerSettings, teacher: Callable[[Tensor], Tensor]) -> None:
        self.settings = settings
        self.teacher = teacher

    def __call__(self, objective: Objective, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        passes: list[tuple[Tensor, Tensor]] = []

        def with_teacher(x: Tensor) -> Tensor:
            if not torch.is_grad_enabled():  # samples are chosen, not learned
                return forward(x)
            outputs, targets = accel.parallel(partial(forward, x), partial(self.teacher, x))
            passes.append((outputs, targets))
            return outputs

        outcome = objective(with_teacher, step)
        outputs, targets = map(torch.cat, zip(*passes, strict=True))
        return replace(outcome, loss=outcome.loss + self._loss(outputs, targets, step))

    def _loss(self, outputs: Tensor, targets: Tensor, step: Step) -> Tensor:
        """The weighted divergence of the samples that are distilled, over the number of all."""
        count, first = len(outputs), 0 if self.settings.distill_on == "all" else step.new
        if first >= count:
            return outputs.new_zeros(())
        outputs, targets = outputs[first:], targets[first:]
        if step.active is None:
            mean = sample_losses(outputs, targets, None).mean()
        else:
            temperature = self.settings.distill_temperature
            mean = divergence(targets, outputs, step.active, temperature=temperature)
            mean = mean * temperature**2
        return self.settings.distillation * len(outputs) / count * mean
