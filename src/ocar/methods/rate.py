"""A learning rate that nobody has to set: it follows how much a step changes the predictions.

A step of OCAR is −α (F̄ + τI)⁻¹ g. By the quadratic model it changes the predictions by a divergence
of about ½ α² gᵀ (F̄ + τI)⁻¹ g, in nats per sample. The rate makes this divergence δ, the same for
every model, in the geometric mean over about the last hundred batches. A single batch has little
weight: new classes have large gradients, but should be learned at the same rate.

A small memory represents a long stream badly. A step that keeps the predictions on the memory can
still change predictions on samples that the memory has lost. So the rate falls as the stream
outgrows the memory. The damping, which otherwise equals the rate, falls less:

    α = α₀ / (1 + e / 5)^1.5,    τ = α (1 + e / 20),

with e = samples that the memory represents / its size. A memory that forgets by age represents only
the latest samples. With such a memory the rate stops falling, and can follow a drift for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ocar.errors import CheckpointError
from ocar.methods.context import Context

FALL, POWER, GROWTH = 5.0, 1.5, 20.0
"""Of the fall of the rate with e, its power, and of the growth of the damping."""

START, LARGEST, SMALLEST = 0.01, 0.1, 1e-5
"""The first rate, and its bounds."""

REGRESSION = 0.3
"""The rate in regression, where it does not change: the loss is quadratic, or its natural step is
bounded, so that long steps do no harm, and a stream that drifts needs them."""

LEAST_WEIGHT = 0.01
"""Weight of a batch in the mean, once a hundred have been seen."""


class DivergenceRate:
    """The learning rate of OCAR where none was given.

    Args:
        divergence: δ, how much the steps on a batch may change the predictions, in nats a sample.
        context: The parts of the learner.

    Attributes:
        used: The rate for the present batch, a scalar of float64 that is changed in place.
        damping: What belongs to it, likewise.
        predicted: The divergence that was predicted of the first step on the batch, likewise.
        mean: The mean logarithm of the divergence divided by the rate, likewise.
    """

    def __init__(self, divergence: float, context: Context) -> None:
        self._divergence = divergence / context.passes
        self._memory = context.memory
        self._follows = context.likelihood == "categorical"
        start = START if self._follows else REGRESSION
        self.used = torch.full((), start, dtype=torch.float64, device=context.device)
        self.damping = self.used.clone()
        self.predicted = torch.zeros_like(self.used)
        self.mean = torch.full_like(self.used, math.log(self._divergence / start))

    def __float__(self) -> float:
        return float(self.used)

    def numbers(self, batch: int) -> tuple[float, float, float]:
        """What :meth:`start_` and :meth:`follow_` need for a batch, the first being 1."""
        epochs = self._memory.represents / self._memory.capacity if self._follows else 0.0
        return (1 + epochs / FALL) ** -POWER, 1 + epochs / GROWTH, max(LEAST_WEIGHT, 1 / batch)

    def start_(self, fall: Tensor, growth: Tensor) -> None:
        """A batch begins."""
        if self._follows:
            rate = (self._divergence / self.mean.exp()).clamp(SMALLEST, LARGEST)
            self.used.copy_((rate * fall).clamp_min(SMALLEST))
            self.damping.copy_(self.used * growth)

    def follow_(self, product: Tensor, weight: Tensor) -> None:
        """Take the first step on a batch into the mean; ``product`` is gᵀ (F̄ + τI)⁻¹ g."""
        self.predicted.copy_(self.used.square() * product / 2)
        moved = torch.lerp(self.mean, (self.predicted / self.used).log(), weight)
        self.mean.copy_(torch.where(moved.isfinite(), moved, self.mean))

    def why(self, fall: float, growth: float) -> dict[str, str]:
        """How rate and damping were chosen, in words; the numbers are those of a batch."""
        if not self._follows:
            return {
                "lr": "constant in regression",
                "tau": "lr times the information of the outputs",
            }
        mean = f"in the mean a step changes predictions by {self._divergence:.2g} nats"
        size, latest = self._memory.capacity, self._memory.represents
        factor = f"times {fall:.2g}, as a memory of {size} represents {latest:,.0f} samples"
        return {"lr": f"{mean}; {factor}", "tau": f"lr times {growth:.3g}"}

    def tensors(self) -> list[Tensor]:
        """What a step changes."""
        return [self.used, self.damping, self.predicted, self.mean]

    def state_dict(self) -> dict[str, Tensor]:
        """The mean, from which the next rate follows."""
        return {"rate": self.mean}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        mean = state.get("rate")
        if mean is None or mean.shape != () or not math.isfinite(float(mean)):
            raise CheckpointError(
                f"The checkpoint has {mean} for the divergence of a step. Must be a number: it is "
                "of a learner with a given lr, or damaged."
            )
        self.mean.copy_(mean)
