"""The parts of a learner that its objective and its transform may use."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.errors import ConfigError, ModelError
from ocar.memory import Memory
from ocar.methods.student_t import ResidualScale
from ocar.models.head import GrowingHead, check_shape
from ocar.models.modes import evaluating
from ocar.structure import Inputs, call, first_input


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """The parts of a learner."""

    model: nn.Module  #: The model that learns.
    head: GrowingHead | None  #: The output layer and the classes of its units; None in regression.
    memory: Memory  #: The replay memory, with raw samples.
    lr: float | None  #: Learning rate; None if the gradient transform chooses it.
    passes: int  #: Gradient steps a stream batch.
    likelihood: str  #: ``"categorical"``, ``"gaussian"`` or ``"student-t"``.
    #: The scale of the residuals of a Student-t likelihood; None for another.
    residuals: ResidualScale | None
    seed: int  #: Seed of the learner; :func:`ocar.rng.make_generator` makes generators from it.
    device: torch.device  #: Where the model is.
    dtype: torch.dtype  #: Type of its parameters.
    record: bool  #: Whether steps may be recorded as a CUDA graph.
    normalize: Callable[[Inputs], Inputs]  #: From raw samples to inputs of the model.
    #: From raw samples to augmented raw samples, another draw each time.
    augment: Callable[[Inputs], Inputs]
    #: From raw targets to what the model is to predict; units of the head stay as they are.
    targets: Callable[[Tensor], Tensor]
    #: Curvature of the loss of a new and of a replayed sample, in units of its Fisher.
    curvature_scale: tuple[float, float] = (1.0, 1.0)
    #: Shares passes of the model out over ranks; None on one device.
    shared: accel.SharedModel | None = None

    def forward(self, x: Inputs) -> Tensor:
        """Outputs of the model for its inputs; a ``ModelError`` if they are none in this mode."""
        outputs = call(self.model, x)
        if self.head is None:
            check_shape(outputs, rows=len(x))
        else:
            check_shape(outputs, rows=len(x), units=self.head.capacity, head=self.head.name)
        return outputs

    def forward_shared(self, x: Inputs) -> Tensor:
        """The same for inputs that all ranks have, each of which computes a share.

        The gradients of parameters are then those of this rank's share.
        """
        return self.forward(x) if self.shared is None else self.shared.call(self.forward, x)

    def answer(self, outputs: Tensor) -> Tensor:
        """:func:`mean_prediction`, of the classes seen."""
        return mean_prediction(
            outputs, classes=None if self.head is None else len(self.head.classes)
        )

    def features(
        self, x: Inputs, forward: Callable[[Inputs], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features (the inputs of the head) and outputs for inputs of the model.

        ``forward`` calls the model, perhaps with other weights.

        Raises:
            RuntimeError: There is no head.
            ConfigError: There are several ranks.
        """
        if self.head is None:
            raise RuntimeError("A regression has no head to take features from.")
        if self.shared is not None:
            raise ConfigError("Features cannot be shared out over ranks. Use one device.")
        return with_inputs(self.head.layer, forward or self.forward, x)

    def made_of(self) -> object:
        """What is derived from memory and weights is made of this; equal while both are the same.

        Others than the learner may change the weights, such as ``load_state_dict``. What a recorded
        step changes is not seen here.
        """
        return self.memory.seen, [p._version for p in self.model.parameters()]

    def evaluating(self) -> AbstractContextManager[None]:
        """The model in eval mode and without gradients; afterwards as before."""
        return evaluating(self.model)


def mean_prediction(outputs: Tensor, *, classes: int | None) -> Tensor:
    """The outputs of one view; of several the log of their mean probabilities, or their mean.

    A view is what one model says about the image or its mirror image.

    Args:
        outputs: Of each view, ``(views, n, outputs)``.
        classes: How many units stand for a class, the first ones; None in regression.

    Returns:
        Shape ``(n, classes)``.
    """
    if classes is None:
        return outputs.mean(0)
    outputs = outputs[..., :classes]
    if len(outputs) == 1:
        return outputs[0]
    return outputs.log_softmax(-1).logsumexp(0) - math.log(len(outputs))


def with_inputs(
    layer: nn.Module, forward: Callable[[Inputs], Tensor], x: Inputs
) -> tuple[Tensor, Tensor]:
    """What a layer is given in a forward pass that calls it once, and the model's outputs."""
    found: list[Tensor] = []

    def record(module: nn.Module, *given: Any) -> None:
        found.append(first_input(*given))

    with layer.register_forward_pre_hook(record, with_kwargs=True):
        outputs = forward(x)
    if len(found) != 1:
        raise ModelError(
            f"The output layer was called {len(found)} times in a forward pass; this method needs "
            "a model that calls it once."
        )
    return found[0], outputs
