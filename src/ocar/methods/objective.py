"""The loss that a learner minimises in one gradient step.

An objective turns one :class:`Step`, the joint batch of new and replayed samples, into a loss. An
objective is independent of the use of its gradient, so it works with any gradient transform.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.methods.context import Context
from ocar.methods.student_t import ResidualScale
from ocar.models.head import mask_logits
from ocar.structure import Inputs

S = TypeVar("S")

Forward = Callable[[Inputs], Tensor]
"""The model: prepared inputs to outputs, ``(n, ...)`` to ``(n, outputs)``."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A stream batch that is about to be learned."""

    units: Sequence[int]  #: Unit of the head for each new sample; empty in regression.
    known: int  #: Classes seen so far, including those of this batch.
    step: int  #: Gradient steps taken so far.
    #: The largest label so far, including those of this batch; -1 if there is none.
    largest: int = -1
    outputs: int = 0  #: Outputs of the model.
    samples: int = 0  #: Samples of a gradient step, new and replayed, once the memory has enough.
    #: To be called with tensors that ``begin`` is about to change in place, so that a roll back can
    #: restore them.
    keep: Callable[[Iterable[Tensor]], object] = lambda tensors: None


@dataclass(frozen=True, kw_only=True)
class Step:
    """The joint batch of one gradient step: new samples, then the samples of each draw."""

    #: Augmented and normalised inputs, ``(n, ...)``: a tensor, or for a model with several inputs a
    #: :class:`~ocar.structure.Structure`.
    x: Inputs
    y: Tensor  #: Units of the head, ``(n,)``, or regression targets, ``(n, outputs)``.
    raw: Inputs  #: The samples before augmentation and normalisation, ``(n, ...)``.
    new: int  #: How many samples are new; the others are replayed.
    #: Samples of each draw from memory, in order; all 0 while the memory is empty.
    draws: tuple[int, ...]
    extras: Mapping[str, Tensor]  #: Extras of the replayed samples, ``(n − new, ...)``.
    index: int  #: Which pass over the stream batch this is, from 0.
    #: Which outputs stand for a class, ``(outputs,)`` of bool; None in regression.
    active: Tensor | None
    numbers: Tensor  #: What the transform's ``begin`` returned, as float64 on the model's device.
    #: What the objective's ``begin`` returned, as float64 on the model's device.
    own_numbers: Tensor
    #: Share of the new samples in a mean over the joint batch; None to count every sample alike.
    new_share: float | None = None

    @property
    def replayed(self) -> int:
        """How many samples are replayed."""
        return sum(self.draws)

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of a new and of a replayed sample in a mean over the joint batch."""
        if self.new_share is None or not self.replayed:
            return 1.0, 1.0
        count = self.new + self.replayed
        return self.new_share * count / self.new, (1 - self.new_share) * count / self.replayed

    def mean(
        self, mean_of: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor
    ) -> Tensor:
        """A mean over the joint batch, from the means over its new and its replayed samples."""
        if self.new_share is None or not self.replayed:
            return mean_of(outputs, targets)
        new = mean_of(outputs[: self.new], targets[: self.new])
        replayed = mean_of(outputs[self.new :], targets[self.new :])
        return self.new_share * new + (1 - self.new_share) * replayed


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an objective computed."""

    loss: Tensor  #: The loss to differentiate, a scalar.
    #: Outputs of the joint batch before masking, if one forward pass made them, else None. A
    #: curvature can then use the same forward pass.
    outputs: Tensor | None
    #: The batch that the loss is over, if it is not the joint batch. The curvature is then taken of
    #: this batch.
    step: Step | None = None


class Part:
    """What an objective and a gradient transform have in common."""

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """The generators that a step draws from."""
        return ()

    def begin(self, batch: Begun) -> Sequence[float]:
        """A stream batch is about to be learned; this runs on the host.

        Returns:
            Numbers that change from batch to batch, always equally many. Each step gets them as
            a tensor, ``step.numbers`` for a transform and ``step.own_numbers`` for an objective;
            a recorded step sees changes of no other number.
        """
        return ()

    def tensors(self) -> Sequence[Tensor]:
        """Tensors that a step changes in place; the guard rolls them back with a batch."""
        return ()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that is needed to go on exactly."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            CheckpointError: The state is of another model.
        """


class Objective(Part, ABC):
    """A loss over the joint batch.

    It may keep state between batches: a teacher, a projection, class means. A step may be recorded
    as a CUDA graph, so :meth:`__call__` must not wait for the device, and must change its state in
    place.
    """

    joint: bool = True  #: Whether it runs exactly one forward pass, over the joint batch.
    recordable: bool = True  #: Whether its step has fixed shapes and never waits for the device.
    #: Whether it takes gradient steps on the stream; if not, batches only enter the memory.
    learns: bool = True
    #: Whether predictions come from :meth:`predict` instead of the model's outputs.
    predicts: bool = False
    #: Whether predictions compare features of unit length; the probe then takes these.
    unit_features: bool = False
    #: Whether :meth:`boundary` is to be called; see :func:`ocar.evaluate.evaluate`.
    wants_boundaries: bool = False

    def parameters(self) -> Sequence[nn.Parameter]:
        """Parameters of its own, trained with those of the model."""
        return ()

    def draws(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of the draws from memory for this batch, given the sizes in the settings."""
        return sizes

    @abstractmethod
    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""

    def extras(self, x: Inputs) -> dict[str, Tensor]:
        """Extra columns to store with raw samples; called after the batch was learned."""
        return {}

    def known(self, outputs: Tensor, y: Tensor, active: Tensor | None) -> dict[str, Tensor]:
        """Facts about samples for a memory policy; see :attr:`ocar.memory.Offer.known`.

        Args:
            outputs: Outputs of the model in eval mode, ``(n, outputs)``.
            y: Units of the head or regression targets.
            active: Which outputs stand for a class; None in regression.
        """
        return {"loss": sample_losses(outputs, y, active), "outputs": outputs}

    def learned(self) -> None:
        """A stream batch has been learned and remembered."""

    def predict(self, x: Inputs) -> Tensor:
        """Scores of the classes seen, ``(n, classes)``, from inputs of the model."""
        raise NotImplementedError

    def boundary(self) -> None:
        """A task has ended, and another follows."""

    def release(self) -> None:
        """Give back memory of the device that only makes it faster."""


class ClassObjective(Objective, Generic[S]):
    """A loss over classes, with the settings of its method and the parts of its learner."""

    def __init__(self, settings: S, context: Context) -> None:
        assert context.head is not None
        self.settings = settings
        self.context = context
        self.head = context.head


class PredictionLoss(Objective):
    """The mean loss of the predictions for the joint batch.

    Args:
        scale: The scale of the residuals of a Student-t likelihood; None for another.
    """

    def __init__(self, scale: ResidualScale | None = None) -> None:
        self.scale = scale

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        outputs = forward(step.x)
        self.follow(outputs, step)
        loss = step.mean(lambda own, y: self.loss(own, y, step), outputs, step.y)
        return Outcome(loss=loss, outputs=outputs)

    def follow(self, outputs: Tensor, step: Step) -> None:
        """Take the residuals of the new samples into the scale of a Student-t likelihood."""
        if self.scale is not None and step.index == 0:
            self.scale.follow_(step.y[: step.new] - outputs.detach()[: step.new])

    def loss(self, outputs: Tensor, y: Tensor, step: Step) -> Tensor:
        """The mean loss of some samples of a step."""
        return mean_loss(outputs, y, step.active, self.scale)

    def known(self, outputs: Tensor, y: Tensor, active: Tensor | None) -> dict[str, Tensor]:
        """Facts about samples for a memory policy."""
        return {"loss": sample_losses(outputs, y, active, self.scale), "outputs": outputs}

    def begin(self, batch: Begun) -> Sequence[float]:
        """Make room for the scale of each output."""
        if self.scale is not None:
            self.scale.fit(batch.outputs)
        return ()

    def tensors(self) -> Sequence[Tensor]:
        """The scale of the residuals."""
        return () if self.scale is None else self.scale.tensors()

    def state_dict(self) -> dict[str, Tensor]:
        """The scale of the residuals."""
        return {} if self.scale is None else self.scale.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        if self.scale is not None:
            self.scale.load_state_dict(state)


def mean_loss(
    outputs: Tensor, y: Tensor, active: Tensor | None, scale: ResidualScale | None = None
) -> Tensor:
    """The mean over samples of −log p(y): cross-entropy, or ½‖f − y‖² of a unit Gaussian.

    Args:
        outputs: Outputs of the model, ``(n, outputs)``.
        y: Units of the head, ``(n,)``, or regression targets, ``(n, outputs)``.
        active: Which outputs stand for a class, the others are masked; None in regression.
        scale: The scale of a Student-t likelihood; None for another.
    """
    if active is None:
        return sample_losses(outputs, y, active, scale).mean()
    return functional.cross_entropy(mask_logits(outputs, active), y)


def sample_losses(
    outputs: Tensor, y: Tensor, active: Tensor | None, scale: ResidualScale | None = None
) -> Tensor:
    """The losses of :func:`mean_loss`, one a sample, ``(n,)``."""
    if scale is not None:
        return scale.losses(y - outputs)
    if active is None:
        return (outputs - y).square().sum(-1) / 2
    return functional.cross_entropy(mask_logits(outputs, active), y, reduction="none")
