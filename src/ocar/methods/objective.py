"""What a learner minimises in one gradient step.

An objective turns one :class:`Step`, the joint batch of new and replayed samples, into a loss. It
knows nothing of how the gradient is used, so that any objective goes with any gradient transform.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.models.head import mask_logits

Forward = Callable[[Tensor], Tensor]
"""The model: prepared inputs to outputs, ``(n, ...)`` to ``(n, outputs)``."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A stream batch that is about to be learned."""

    units: Sequence[int]
    """Unit of the head for each new sample; empty in regression."""

    known: int
    """Classes seen so far, those of this batch included."""

    step: int
    """Gradient steps taken so far."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The joint batch of one gradient step: new samples, then those of each draw from memory."""

    x: Tensor
    """Augmented and normalised inputs, ``(n, ...)``."""

    y: Tensor
    """Units of the head, ``(n,)``, or regression targets, ``(n, outputs)``."""

    raw: Tensor
    """The samples before augmentation and normalisation, ``(n, ...)``."""

    new: int
    """How many samples are new; the others are replayed."""

    draws: tuple[int, ...]
    """Samples of each draw from memory, in this order; all 0 while it is empty."""

    extras: Mapping[str, Tensor]
    """Extras of the replayed samples, ``(n − new, ...)``."""

    index: int
    """Which pass over the stream batch this is, from 0."""

    active: Tensor | None
    """Which outputs stand for a class, ``(outputs,)`` of bool; None in regression."""

    numbers: Tensor
    """What the transform's ``begin`` returned, as float64 on the model's device."""

    own_numbers: Tensor
    """What the objective's ``begin`` returned, as float64 on the model's device."""

    @property
    def replayed(self) -> int:
        """How many samples are replayed."""
        return sum(self.draws)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an objective computed."""

    loss: Tensor
    """The loss to differentiate, a scalar."""

    outputs: Tensor | None
    """Outputs of the joint batch before masking, if one forward pass made them, else None.

    A curvature can then use that same pass."""

    step: Step | None = None
    """The batch of the loss, if it is not the joint batch that was drawn.

    A curvature is then taken from this."""


class Objective(ABC):
    """A loss over the joint batch.

    What it keeps between batches (a teacher, a projection, class means) is its own. A step may be
    recorded as a CUDA graph: :meth:`__call__` must not wait for the device, and must change what it
    keeps in place.
    """

    joint: bool = True
    """Whether one forward pass over the joint batch is all that it runs."""

    recordable: bool = True
    """Whether its step has fixed shapes and waits for nothing."""

    learns: bool = True
    """Whether it takes gradient steps on the stream; if not, batches are only remembered."""

    predicts: bool = False
    """Whether :meth:`predict` predicts, and not the model's outputs."""

    wants_boundaries: bool = False
    """Whether :meth:`boundary` is to be called; see :func:`ocar.evaluate.evaluate`."""

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """The generators that a step draws from."""
        return ()

    def parameters(self) -> Sequence[nn.Parameter]:
        """Parameters of its own, which learn with the model's."""
        return ()

    def begin(self, batch: Begun) -> Sequence[float]:
        """A stream batch is about to be learned; see :meth:`Transform.begin`."""
        return ()

    def draws(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of the draws from memory for this batch, given those of the settings."""
        return sizes

    @abstractmethod
    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""

    def extras(self, x: Tensor) -> dict[str, Tensor]:
        """What to remember of samples beside x and y; called once they have been learned.

        Args:
            x: Raw samples on the model's device, ``(n, ...)``.
        """
        return {}

    def known(self, outputs: Tensor, y: Tensor, active: Tensor | None) -> dict[str, Tensor]:
        """What a memory policy may know of samples; see :attr:`ocar.memory.Offer.known`.

        Args:
            outputs: Outputs of the model in eval mode, ``(n, outputs)``.
            y: Units of the head or regression targets.
            active: Which outputs stand for a class; None in regression.
        """
        if active is None:
            losses = (outputs - y).square().sum(-1) / 2
        else:
            losses = functional.cross_entropy(mask_logits(outputs, active), y, reduction="none")
        return {"loss": losses, "outputs": outputs}

    def learned(self) -> None:  # noqa: B027 (most have nothing to do)
        """A stream batch has been learned and remembered."""

    def predict(self, x: Tensor) -> Tensor:
        """Scores of the classes seen, ``(n, classes)``, from inputs of the model."""
        raise NotImplementedError

    def boundary(self) -> None:  # noqa: B027
        """A task has ended, and another follows."""

    def release(self) -> None:  # noqa: B027
        """Give back memory of the device that only makes it faster."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that a restored objective needs to go on exactly."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Restore what :meth:`state_dict` gave."""


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
