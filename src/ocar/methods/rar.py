"""RAR: retrospective adversarial replay.

Kumari et al., "Retrospective Adversarial Replay for Continual Learning"
(NeurIPS 2022). A second draw from memory is perturbed within ε and replayed
with its own labels:

    CE(joint) + β CE(x + δ; y).

δ comes from a few steps of the momentum iterative sign method on CE(x + δ; t), for
the weights w' after a step of size ``inner_lr`` on the joint batch. The target t is
the label of another sample, so that the boundary between two classes is refined.
There are two kinds of perturbation:

* "paper": t is the label of the nearest new sample with another label, by features.
  The loss is descended, with a new gradient for each of k steps of size ε/k. The
  momentum is normalised for each sample, and the result is clamped to the inputs
  that uint8 samples can have.
* "survey", the code behind the published tables: t is the label of the farthest
  sample of the joint batch with another label, by logits. The loss is ascended, away
  from the target. One gradient serves all k − 1 steps, so the decay of the momentum
  has no effect. The inputs are clamped to [0, 1] although they are normalised. The
  steps stop once a pixel has moved by more than ε, which only the clamp can cause.

ε is in units of the model's inputs. The paper's MixUp is not implemented.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ocar.config import require_range
from ocar.errors import ModelError
from ocar.methods.context import Context
from ocar.methods.copies import VirtualStep
from ocar.methods.objective import (
    ClassObjective,
    Forward,
    Objective,
    Outcome,
    Step,
    mean_loss,
    sample_losses,
)
from ocar.methods.settings import LearnerSettings
from ocar.structure import one_tensor


@dataclass(frozen=True, kw_only=True)
class RARSettings(LearnerSettings):
    """Settings of RAR."""

    no_regression = "a regression has no classes"
    needs_numbers = "RAR perturbs its inputs"
    one_device = "RAR tries a step by itself"

    beta: float = 0.4
    """Weight of the perturbed samples (β)."""

    epsilon: float = 0.0314
    """How far an input may be moved (ε)."""

    iterations: int = 2
    """k: a step of the perturbation is ε/k."""

    decay: float = 1.0
    """Decay of the perturbation's momentum from one step to the next."""

    inner_lr: float = 0.1
    """Learning rate of the virtual step whose weights the perturbation uses."""

    perturbation: Literal["survey", "paper"] = "survey"
    """Away from the farthest (the code behind the published tables), or towards the nearest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 0", "beta", "epsilon", "decay", "inner_lr")
        require_range(self, "at least 1", "iterations")

    @property
    def draws(self) -> tuple[int, ...]:
        """One draw to replay unchanged, and one to perturb."""
        return (self.replay_batch, self.replay_batch)

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy of the joint batch and of perturbed samples."""
        return AdversarialReplay(self, context)


class AdversarialReplay(ClassObjective[RARSettings]):
    """CE(joint) + β CE(perturbed)."""

    joint = False

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step; plain cross-entropy if nothing is replayed."""
        n = step.new + step.draws[0]
        joint = replace(
            step,
            x=step.x[:n],
            y=step.y[:n],
            raw=step.raw[:n],
            draws=step.draws[:1],
            extras={name: extra[: step.draws[0]] for name, extra in step.extras.items()},
        )
        loss = mean_loss(forward(joint.x), joint.y, step.active)
        if not step.replayed:
            return Outcome(loss=loss, outputs=None)
        x, y = one_tensor(step.x)[n:], step.y[n:]
        virtual = VirtualStep(self.context.model, loss, lr=self.settings.inner_lr)
        if self.settings.perturbation == "survey":
            x = self._survey(virtual, joint, x, y)
        else:
            x = self._paper(virtual, joint, x, y, raw=one_tensor(step.raw)[n:])
        perturbed = mean_loss(forward(x), y, step.active)
        return Outcome(loss=loss + self.settings.beta * perturbed, outputs=None, step=joint)

    def _survey(self, virtual: Forward, joint: Step, x: Tensor, y: Tensor) -> Tensor:
        assert joint.active is not None
        with torch.no_grad():
            others = virtual(joint.x)
        moving = x.detach().requires_grad_()
        logits = virtual(moving)
        # Masked logits are all 0, so they add nothing to a distance.
        ours, theirs = (torch.where(joint.active, z.detach(), 0.0) for z in (logits, others))
        farthest = distances(ours, theirs, y, joint.y, same=-torch.inf).max(1)
        targets = torch.where(farthest.values.isfinite(), joint.y[farthest.indices], 0)
        loss = mean_loss(logits, targets, joint.active)
        grad = _gradient(loss, moving)
        return ascend_once(
            x, grad, epsilon=self.settings.epsilon, iterations=self.settings.iterations
        )

    def _paper(self, virtual: Forward, joint: Step, x: Tensor, y: Tensor, *, raw: Tensor) -> Tensor:
        new, y_new = joint.x[: joint.new], joint.y[: joint.new]
        with torch.no_grad():
            ours, theirs = (self.context.features(z, virtual)[0].flatten(1) for z in (x, new))
        nearest = distances(ours, theirs, y, y_new, same=torch.inf).min(1)
        targets = y_new[nearest.indices]
        # A sample without a neighbour of another label is not perturbed.
        towards = _like(nearest.values.isfinite().to(x.dtype), x)
        size = towards * (self.settings.epsilon / self.settings.iterations)
        bounds = self._range(raw)
        momentum, moved = torch.zeros_like(x), x
        for _ in range(self.settings.iterations):
            moving = moved.detach().requires_grad_()
            loss = sample_losses(virtual(moving), targets, joint.active).sum()
            grad = _gradient(loss, moving)
            norms = _like(grad.abs().flatten(1).sum(1), grad)
            normalized = grad / norms.clamp_min(torch.finfo(grad.dtype).tiny)
            momentum = self.settings.decay * momentum + normalized
            moved = moved - size * momentum.sign()
            if bounds is not None:
                moved = moved.clamp(*bounds)
        return moved.detach()

    def _range(self, raw: Tensor) -> tuple[Tensor, Tensor] | None:
        """The smallest and the largest possible inputs, if samples are uint8."""
        if raw.dtype != torch.uint8:
            return None
        normalize = self.context.normalize
        black, white = (one_tensor(normalize(torch.full_like(raw[:1], v))) for v in (0, 255))
        return torch.minimum(black, white), torch.maximum(black, white)


def _gradient(loss: Tensor, x: Tensor) -> Tensor:
    """The gradient of a loss for inputs x."""
    if not loss.requires_grad:
        raise ModelError(
            "RAR moves samples by the gradient of the loss, and the outputs of this model have no "
            "gradient for its inputs; perhaps it rounds them, x.long(). Use another method."
        )
    (grad,) = torch.autograd.grad(loss, x)
    return grad


def distances(x: Tensor, others: Tensor, y: Tensor, y_others: Tensor, *, same: float) -> Tensor:
    """Euclidean distances, ``(n, d)`` and ``(m, d)`` to ``(n, m)``; ``same`` for equal labels."""
    wide = torch.promote_types(x.dtype, torch.float32)  # PyTorch has none of 16 bits
    gap = torch.cdist(x.to(wide), others.to(wide), compute_mode="donot_use_mm_for_euclid_dist")
    return torch.where(y[:, None] == y_others, same, gap)


def ascend_once(x: Tensor, grad: Tensor, *, epsilon: float, iterations: int) -> Tensor:
    """The sign method of the code behind the published tables, with one gradient for all steps.

    The momentum is always a positive multiple of the gradient, so only the gradient's sign counts.
    With k the ``iterations`` there are k − 1 steps of ε/k; the step that goes beyond ε is the last.
    Inputs x and the gradient are ``(n, ...)``.
    """
    moved, size = x, (epsilon / iterations) * grad.sign()
    within = torch.ones((), dtype=torch.bool, device=x.device)
    for _ in range(iterations - 1):
        moved = torch.where(within, (moved + size).clamp(0, 1), moved)
        within = within & ((moved - x).abs().max() <= epsilon)
    return moved.detach()


def _like(values: Tensor, x: Tensor) -> Tensor:
    """``(n,)`` to ``(n, 1, ...)`` with as many dimensions as x."""
    return values.view(-1, *[1] * (x.ndim - 1))
