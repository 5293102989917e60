"""Transforms of the gradient before a step.

A transform can record the forward pass, use the outputs while their graph exists, and rewrite the
gradients after the backward pass. Plain SGD needs none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, SupportsFloat

from torch import Tensor, nn

from ocar.config import require_options
from ocar.curvature.table import table
from ocar.methods.context import Context
from ocar.methods.objective import Forward, Objective, Part, Step
from ocar.structure import Inputs


class Transform(Part):
    """Rewrites gradients. This base class leaves them unchanged: plain SGD."""

    #: Whether it has state of the parameters that learn, so that these must stay the same ones.
    has_layers: ClassVar[bool] = False

    def shape(self, classes: int) -> Hashable:
        """Whatever a recorded step depends on besides the shapes of its tensors.

        ``classes`` counts those with a unit; 0 in regression.
        """
        return None

    def curvature_table(self, model: nn.Module) -> str:
        """Which parameters of a model have which curvature."""
        return table(model, {})

    def try_model(self, model: nn.Module, x: Inputs) -> None:
        """Raise a ``ModelError`` if the model, in eval mode, cannot be used with some inputs.

        Called before the first batch.
        """

    def watch(self, step: Step) -> AbstractContextManager[object]:
        """A context in which the objective runs its forward pass."""
        return nullcontext()

    def observe(self, step: Step, outputs: Tensor | None, forward: Forward) -> Tensor | None:
        """Called after the forward pass, while its graph exists.

        Args:
            step: The joint batch.
            outputs: Its outputs, or None if the objective has no joint forward pass.
            forward: The model, for another forward pass.

        Returns:
            The outputs of that forward pass if one was made, else the given ones.
        """
        return outputs

    def prepare(self, step: Step) -> None:
        """Work without the loss's gradient; it may run in parallel with the backward pass."""

    def rewrite_(self) -> None:
        """Change the gradients in place; called after the backward pass."""

    def ok(self) -> Tensor | None:
        """Whether everything computed for this batch was finite, a scalar of bool; None for yes.

        If not, the guard rolls the batch back.
        """
        return None

    def check(self) -> None:
        """Raise if something went wrong since the last call; this waits for the device."""

    def report(self) -> Mapping[str, SupportsFloat]:
        """Numbers worth watching, by name."""
        return {}

    def why(self) -> Mapping[str, str]:
        """How numbers of :meth:`report` were chosen, in words."""
        return {}


@dataclass(frozen=True, kw_only=True)
class TransformSettings(ABC):
    """Settings of a transform, and how to make it."""

    #: Whether it needs the model's outputs to be a predictive distribution.
    needs_predictions: ClassVar[bool] = False
    #: Why the transform works on one device only; empty if ranks can share it.
    one_device: ClassVar[str] = ""
    #: Whether it chooses the learning rate if the method has none.
    chooses_lr: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_options(self)

    @abstractmethod
    def make(self, context: Context, objective: Objective) -> Transform:
        """The transform for a learner.

        Raises:
            ConfigError: The transform does not work with this objective.
        """
