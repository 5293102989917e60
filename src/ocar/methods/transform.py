"""What a learner does to the gradient before it takes a step.

A transform sees each step from both sides of the backward pass: it may watch
the forward pass, look at the outputs while the graph is there, and rewrite the
gradients afterwards. Plain SGD needs none.
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
from ocar.methods.objective import Forward, Objective, Step


class Transform:
    """Rewrites gradients. This one leaves them as they are: SGD."""

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """What it draws random numbers from."""
        return ()

    def begin(self, units: Sequence[int], *, known: int) -> Sequence[float]:
        """A stream batch is about to be learned.

        Args:
            units: Unit of the head for each new sample; empty in regression.
            known: Classes seen so far, those of this batch included.

        Returns:
            Numbers that change from batch to batch, always as many. Each step gets them as a
            tensor, ``step.numbers``: what is captured as a graph sees no other number change.
        """
        return ()

    def shape(self, classes: int) -> Hashable:
        """What of the next steps, beside the shapes of their tensors, a captured graph depends on.

        Args:
            classes: Classes that there are by now; 0 in regression.
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
            The outputs of that pass where one was made, else those given.
        """
        return outputs

    def rewrite_(self) -> None:
        """The gradients are there, to be changed in place."""

    def replayed(self, steps: int) -> None:
        """A captured graph of so many steps has run in place of the calls above."""

    def check(self) -> None:
        """Raise what went wrong in captured steps, if anything; this waits for the device."""

    def statistics(self) -> Sequence[Tensor]:
        """Tensors that a step changes, few and small, to be put back if a batch is taken back.

        What is too large for that looks at ``step.trusted`` by itself.
        """
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
