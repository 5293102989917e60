"""What a learner minimises in one gradient step.

An objective turns one :class:`Step`, the joint batch of new and replayed
samples, into a loss. It knows nothing of memories or of how the gradient is
used, so that any objective goes with any gradient transform.
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
class Step:
    """The joint batch of one gradient step: new samples, then those of each draw from memory."""

    x: Tensor
    """Augmented and normalised inputs, ``(n, ...)``."""

    y: Tensor
    """Units of the head, ``(n,)``, or regression targets, ``(n, outputs)``."""

    raw: Tensor
    """The samples as they came, before augmentation and normalisation, ``(n, ...)``."""

    new: int
    """How many samples are new; the others are replayed."""

    draws: tuple[int, ...]
    """How many samples each draw from memory gave, in this order; all 0 while it is empty."""

    extras: Mapping[str, Tensor]
    """What the memory stores beside x and y, of the replayed samples, ``(n − new, ...)``."""

    index: int
    """Which pass over the stream batch this is, from 0."""

    active: Tensor | None
    """Which outputs stand for a class, ``(outputs,)`` of bool; None in regression."""

    numbers: Tensor
    """What the transform's ``begin`` returned, as float64 on the model's device."""

    own_numbers: Tensor
    """What the objective's ``begin`` returned, as float64 on the model's device."""

    trusted: Tensor | None = None
    """Whether the new samples are of a sane size, a scalar; None where nobody looked. If not,
    the batch will be taken back, and what is kept of it must stay as it was."""

    @property
    def replayed(self) -> int:
        """How many samples are replayed."""
        return sum(self.draws)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an objective found."""

    loss: Tensor
    """The loss to differentiate, a scalar."""

    outputs: Tensor | None
    """Outputs of the joint batch where one forward pass made them, before masking, else None.

    A curvature can then use that same pass."""

    step: Step | None = None
    """What the loss is of, where that is not the joint batch as it was drawn.

    A curvature is then taken from this."""


class Objective(ABC):
    """A loss over the joint batch.

    What it keeps between batches (a teacher, a projection, class means) is its own. On a GPU
    :meth:`__call__` is captured as a graph: it must wait for nothing, and what it keeps must be
    changed in place.
    """

    joint: bool = True
    """Whether one forward pass over the joint batch is all that it runs."""

    capturable: bool = True
    """Whether its step has fixed shapes and waits for nothing."""

    scores: bool = False
    """Whether :meth:`score` predicts, and not the model's outputs."""

    wants_boundaries: bool = False
    """Whether :meth:`boundary` is to be called; see :func:`ocar.evaluate.evaluate`."""

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """What it draws random numbers from."""
        return ()

    def parameters(self) -> Sequence[nn.Parameter]:
        """Parameters of its own, which learn with the model's."""
        return ()

    def begin(self, units: Sequence[int], *, known: int) -> Sequence[float]:
        """A stream batch is about to be learned; as :meth:`Transform.begin`."""
        return ()

    def draws(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of the draws from memory for the batch at hand, given those of the settings."""
        return sizes

    @abstractmethod
    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""

    def extras(self, x: Tensor) -> dict[str, Tensor]:
        """What to remember of samples beside x and y: called once they have been learned.

        Args:
            x: Raw samples on the model's device, ``(n, ...)``.
        """
        return {}

    def learned(self) -> None:  # noqa: B027 (most have nothing to do)
        """A stream batch has been learned and remembered."""

    def score(self, features: Tensor) -> Tensor:
        """Scores of the classes seen, ``(n, classes)``, from what goes into the head."""
        raise NotImplementedError

    def boundary(self) -> None:  # noqa: B027
        """A task has ended, and another follows."""

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
