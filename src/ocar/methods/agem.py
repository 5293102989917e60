"""A-GEM: the gradient of the new samples, projected so that the memory's loss does not grow.

Chaudhry et al., "Efficient Lifelong Learning with A-GEM" (ICLR 2019). Let g be the
gradient of the loss on new samples and r the gradient on a reference batch from the
memory, each over all parameters as one vector. Then

    g ← g                     if gᵀr ≥ 0,
    g ← g − (gᵀr / rᵀr) r     otherwise,

so that gᵀr ≥ 0 afterwards: to first order the step does not raise the loss of the
reference. The memory has no other use.

As in the code behind the published tables, the reference is drawn anew from the
whole memory for each gradient step, and goes through the model in train mode
before the new samples.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ocar.config import require_range
from ocar.errors import ConfigError
from ocar.methods.context import Context
from ocar.methods.objective import Forward, Objective, Outcome, PredictionLoss, Step, mean_loss
from ocar.methods.settings import LearnerSettings
from ocar.methods.student_t import ResidualScale
from ocar.methods.transform import Transform, TransformSettings
from ocar.structure import call


@dataclass(frozen=True, kw_only=True)
class AGEMSettings(TransformSettings):
    """Settings of A-GEM's projection: none."""

    def make(self, context: Context, objective: Objective) -> Transform:
        """The projection for a learner."""
        if not isinstance(objective, NewSamplesLoss):
            raise ConfigError(
                "The transform 'agem' projects the gradient of new samples against that of the "
                "memory; a loss on replayed samples holds both already. Use the method 'agem'."
            )
        return AGEMTransform(context.model, context.residuals)


@dataclass(frozen=True, kw_only=True)
class AGEMLearnerSettings(LearnerSettings):
    """Settings of a learner with A-GEM; ``replay_batch`` is not used."""

    reference: int = 200
    """Samples of the memory whose loss must not grow, drawn for each gradient step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 1", "reference")

    @property
    def draws(self) -> tuple[int, ...]:
        """The reference."""
        return (self.reference,)

    def refuses(self, transform: TransformSettings | None) -> str | None:
        """Every transform but its own."""
        if isinstance(transform, AGEMSettings):
            return None
        return (
            "A-GEM learns from new samples alone, and only its own projection protects what was "
            "learned before. Use the method 'agem' as it is, or another transform with 'er'."
        )

    def make_objective(self, context: Context) -> Objective:
        """The loss of the new samples."""
        return NewSamplesLoss(context.residuals)


class NewSamplesLoss(PredictionLoss):
    """The mean loss of the new samples in a joint batch."""

    joint = False

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        x, y = step.x[: step.new], step.y[: step.new]
        outputs = forward(x)
        self.follow(outputs, step)
        return Outcome(loss=self.loss(outputs, y, step), outputs=None)


class AGEMTransform(Transform):
    """Projects the gradient against the gradient of the reference."""

    def __init__(self, model: nn.Module, scale: ResidualScale | None) -> None:
        self.model = model
        self.scale = scale
        self._reference: list[tuple[nn.Parameter, Tensor]] = []

    def watch(self, step: Step) -> AbstractContextManager[object]:
        """Take the gradient of the reference, before the new samples go through the model."""
        self._reference.clear()
        if step.replayed:
            x, y = step.x[step.new :], step.y[step.new :]
            loss = mean_loss(call(self.model, x), y, step.active, self.scale)
            parameters = [p for p in self.model.parameters() if p.requires_grad]
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
            both = zip(parameters, grads, strict=True)
            self._reference = [(p, grad) for p, grad in both if grad is not None]
        return nullcontext()

    @torch.no_grad()
    def rewrite_(self) -> None:
        """Remove the component that would raise the loss of the reference, if there is one."""
        if not self._reference:
            return
        for parameter, reference in self._reference:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(reference)
        pairs = [(p.grad, reference) for p, reference in self._reference if p.grad is not None]
        product = torch.stack([(grad * reference).sum() for grad, reference in pairs]).sum()
        square = torch.stack([reference.square().sum() for _, reference in pairs]).sum()
        # A value instead of a branch, so that the step can be recorded.
        share = torch.where(product < 0, product / square, torch.zeros_like(product))
        for grad, reference in pairs:
            grad.sub_(share * reference)
        self._reference.clear()
