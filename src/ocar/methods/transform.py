"""What a learner does to the gradient before it takes a step.

A transform sees each step from both sides of the backward pass: it may watch the forward pass, look
at the outputs while the graph is there, and rewrite the gradients afterwards. Plain SGD needs none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ocar.methods.context import Context
from ocar.methods.objective import Begun, Forward, Objective, Step


class Transform:
    """Rewrites gradients. This one leaves them alone: SGD."""

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """The generators that a step draws from."""
        return ()

    def begin(self, batch: Begun) -> Sequence[float]:
        """A stream batch is about to be learned; this runs on the host.

        Returns:
            Numbers that change from batch to batch, always as many. Each step gets them as a
            tensor, ``step.numbers``. A recorded step sees no other number change.
        """
        return ()

    def shape(self, classes: int) -> Hashable:
        """What else, beside the shapes of tensors, a recorded step depends on.

        Args:
            classes: Classes that have a unit; 0 in regression.
        """
        return None

    def watch(self, step: Step) -> AbstractContextManager[object]:
        """A context for the forward pass of the objective."""
        return nullcontext()

    def observe(self, step: Step, outputs: Tensor | None, forward: Forward) -> Tensor | None:
        """The forward pass is done and its graph is there.

        Args:
            step: The joint batch.
            outputs: Its outputs, or None if the objective has no joint forward pass.
            forward: The model, for a pass of the transform's own.

        Returns:
            The outputs of that pass if one was made, else those given.
        """
        return outputs

    def prepare(self, step: Step) -> None:
        """Work that needs no gradient of the loss; it may run in parallel with the backward pass.

        Args:
            step: The joint batch.
        """

    def rewrite_(self) -> None:
        """The gradients are there, to be changed in place."""

    def ok(self) -> Tensor | None:
        """Whether all that it computed for this batch was finite, a scalar of bool; None for yes.

        If not, the guard rolls the batch back.
        """
        return None

    def check(self) -> None:
        """Raise if something went wrong since the last call; this waits for the device."""

    def tensors(self) -> Sequence[Tensor]:
        """Tensors that a step changes, to be rolled back with a batch."""
        return ()

    def report(self) -> dict[str, float]:
        """Numbers worth watching, by name."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that a restored transform needs to go on exactly."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""


@dataclass(frozen=True, kw_only=True)
class TransformSettings(ABC):
    """Settings of a transform, and how to make it."""

    needs_predictions: ClassVar[bool] = False
    """Whether it needs the model's outputs to be a predictive distribution."""

    @abstractmethod
    def make(self, context: Context, objective: Objective) -> Transform:
        """The transform for a learner.

        Args:
            context: The parts of the learner.
            objective: The loss that it goes with.

        Raises:
            ConfigError: The transform makes no sense with this objective.
        """
