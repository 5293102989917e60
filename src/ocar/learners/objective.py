"""What a learner minimises in one gradient step.

An objective turns one :class:`Step`, the joint batch of new and replayed
samples, into a loss. It knows nothing of memories or of how the gradient is
used, so that any objective goes with any gradient transform.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from ocar.models.head import mask_logits

Forward = Callable[[Tensor], Tensor]
"""The model: prepared inputs to outputs, ``(n, ...)`` to ``(n, outputs)``."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The joint batch of one gradient step."""

    x: Tensor
    """Augmented and normalised inputs, the new samples first, ``(n, ...)``."""

    y: Tensor
    """Units of the head, ``(n,)``, or regression targets, ``(n, outputs)``."""

    new: int
    """How many samples are new; the others are replayed."""

    index: int
    """Which pass over the stream batch this is, from 0."""

    active: Tensor | None
    """Which outputs stand for a class, ``(outputs,)`` of bool; None in regression."""

    numbers: Tensor
    """What the transform's ``begin`` returned, as float64 on the model's device."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an objective found."""

    loss: Tensor
    """The loss to differentiate, a scalar."""

    outputs: Tensor | None
    """Outputs of the joint batch where one forward pass made them, before masking, else None.

    A curvature can then use that same pass."""


class Objective(ABC):
    """A loss over the joint batch."""

    joint: bool = True
    """Whether one forward pass over the joint batch is all that it runs."""

    @abstractmethod
    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""


class CrossEntropy(Objective):
    """Mean cross-entropy of the joint batch, over the classes seen."""

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        outputs = forward(step.x)
        assert step.active is not None
        loss = functional.cross_entropy(mask_logits(outputs, step.active), step.y)
        return Outcome(loss=loss, outputs=outputs)


class SquaredError(Objective):
    """Half the mean squared distance, ½‖f − y‖²: the likelihood of a unit Gaussian."""

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        outputs = forward(step.x)
        loss = (outputs - step.y).square().sum(-1).mean() / 2
        return Outcome(loss=loss, outputs=outputs)
