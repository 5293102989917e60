"""A learning rate that nobody has to set: it follows how much a step changes the predictions.

A step of OCAR is −α (F̄ + τI)⁻¹ g. By the quadratic model it changes the predictions by a divergence
of about ½ α² gᵀ (F̄ + τI)⁻¹ g, in nats a sample. The rate is raised while this is below a bound, and
lowered while it is above. The bound is the same for every model. It falls as the stream outgrows
the memory,

    δ / (1 + e / 5)²,    e = samples that the memory represents / its size,

since a small memory represents a long stream badly: a step that keeps the predictions on the memory
can still change those on samples that the memory has lost. A memory that forgets by age represents
the latest samples only. Then the bound stops falling, and the rate can follow a drift for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ocar.errors import CheckpointError
from ocar.methods.context import Context

EPOCHS = 5.0
"""Value of e at which the bound is a quarter of δ."""

LARGEST, SMALLEST = 0.1, 1e-4
"""Bounds of the rate. It starts with the larger one."""

REGRESSION = 0.3
"""The rate in regression, where it does not change: the loss is quadratic, so that long steps do no
harm, and a stream that drifts needs them."""

GAIN, MOST = 0.3, 4.0
"""Exponent of the correction after a batch, and the largest factor that it may be."""


class DivergenceRate:
    """The learning rate of OCAR where none was given.

    Args:
        divergence: δ, how much the steps on a batch may change the predictions, in nats a sample.
        context: The parts of the learner.

    Attributes:
        value: The rate for the next batch, a scalar of float64 that is changed in place.
        used: The rate for the present batch, likewise.
        predicted: The divergence that was predicted of the first step on the batch, likewise.
    """

    def __init__(self, divergence: float, context: Context) -> None:
        self._divergence = divergence / context.passes
        self._memory = context.memory
        self._follows = context.likelihood != "gaussian"
        start = LARGEST if self._follows else REGRESSION
        self.value = torch.full((), start, dtype=torch.float64, device=context.device)
        self.used = self.value.clone()
        self.predicted = torch.zeros_like(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def bound(self) -> float:
        """How much one step on the next batch may change the predictions, in nats a sample."""
        epochs = self._memory.represents / self._memory.capacity
        return self._divergence / (1 + epochs / EPOCHS) ** 2

    def start_(self) -> None:
        """A batch begins."""
        self.used.copy_(self.value)

    def follow_(self, product: Tensor, *, bound: Tensor) -> None:
        """Correct the rate after the first step on a batch.

        Args:
            product: gᵀ (F̄ + τI)⁻¹ g, a scalar.
            bound: What :meth:`bound` returned.
        """
        self.predicted.copy_(self.used.square() * product / 2)
        if self._follows:
            correction = ((bound / self.predicted) ** GAIN).clamp(1 / MOST, MOST)
            value = (self.used * correction).clamp(SMALLEST, LARGEST)
            self.value.copy_(torch.where(value.isfinite(), value, self.used))

    def tensors(self) -> list[Tensor]:
        """What a step changes."""
        return [self.value, self.used, self.predicted]

    def state_dict(self) -> dict[str, Tensor]:
        """The rate for the next batch."""
        return {"rate": self.value}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        rate = state.get("rate")
        if rate is None or rate.shape != () or not 0 < float(rate) <= 1:
            raise CheckpointError(
                f"The checkpoint has the learning rate {rate}. Must be a number in (0, 1]: it is "
                "of a learner with a given lr, or damaged."
            )
        self.value.copy_(rate)
