"""What an objective or a transform may use of the learner that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ocar.memory import Memory
from ocar.models.head import GrowingHead


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """The parts of a learner."""

    model: nn.Module
    """What learns."""

    head: GrowingHead | None
    """The output layer and the classes that its units stand for; None in regression."""

    memory: Memory
    """What is remembered, raw."""

    lr: float
    """Learning rate."""

    likelihood: str
    """``"categorical"`` or ``"gaussian"``."""

    seed: int
    """Seed of the learner; ask :func:`ocar.rng.make_generator` for generators of your own."""

    device: torch.device
    """Where the model is."""

    dtype: torch.dtype
    """Type of its parameters."""

    normalize: Callable[[Tensor], Tensor]
    """From raw samples to inputs of the model."""

    augment: Callable[[Tensor], Tensor]
    """From raw samples to augmented raw samples, another draw each time."""

    def mask(self, outputs: Tensor) -> Tensor:
        """Outputs of the classes seen, ``(n, outputs)`` to ``(n, classes)``."""
        return outputs if self.head is None else outputs[:, : len(self.head.classes)]

    def features(
        self, x: Tensor, forward: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """What goes into the head for inputs of the model, and the outputs.

        Args:
            x: Inputs of the model.
            forward: Calls the model, with other weights for instance; by default as it is.

        Raises:
            RuntimeError: There is no head, or it is not called once in a forward pass.
        """
        if self.head is None:
            raise RuntimeError("A regression has no head to take features from.")
        found: list[Tensor] = []

        def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            found.append(inputs[0])

        handle = self.head.layer.register_forward_pre_hook(record)
        try:
            outputs: Tensor = self.model(x) if forward is None else forward(x)
        finally:
            handle.remove()
        (features,) = found
        return features, outputs

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model in eval mode and without gradients; as it was afterwards."""
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module in training:
                module.training = True
