"""A Student-t likelihood for regression: outliers have a bounded influence.

Each output f is the location of a Student-t distribution with ν degrees of freedom and scale σ.
The loss of a residual r = y − f is −log p up to a constant,

    (ν + 1)/2 · log(1 + r²/(νσ²)),    with the gradient −(ν + 1) r / (νσ² + r²).

The Fisher information of a location is (ν + 1)/((ν + 3)σ²), so without damping a natural step moves
an output by α (ν + 3) r / (ν + r²/σ²). The move is about α r for small residuals, at most
α σ (ν + 3)/(2√ν), and falls for larger residuals. Urettini et al., "Online Continual Learning for
Time Series: a Natural Score-driven Approach" (2026), prove a bound of the whole step. As ν grows,
the distribution becomes a Gaussian.

Each output has its own σ. It follows the residuals of new samples before they are learned, by one
step of expectation maximisation per batch (Lange, Little & Taylor, 1989):

    σ² ← (1 − ρ) σ² + ρ · mean of w r²,    w = (ν + 1)/(ν + r²/σ²).

Since w r² < (ν + 1)σ², no outlier can multiply σ² by more than 1 + ρν.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ocar.curvature.fisher import StudentT
from ocar.errors import CheckpointError

LEAST_RATE = 0.1
"""Smallest weight ρ of a new batch in σ². It is 1/(k + 1) for the k-th batch, until that is less:
σ² starts at 1, the variance of a standardised target, which counts as one batch."""

SMALLEST = 1e-4
"""The least σ²: targets that are predicted exactly would have none."""


class ResidualScale:
    """The scale σ of each output, followed online; ``degrees_of_freedom`` are ν.

    Attributes:
        values: None before the first batch, then ``(2, outputs)`` in float64: the number of batches
            so far plus one, for the initial σ² = 1, and σ². It is changed in place, since recorded
            steps use it.
    """

    def __init__(self, degrees_of_freedom: float, device: torch.device) -> None:
        self.degrees_of_freedom = degrees_of_freedom
        self.values: Tensor | None = None
        self._device = device

    def fit(self, outputs: int) -> None:
        """Make room for the outputs of the model, before the first batch."""
        if self.values is None:
            self.values = torch.ones(2, outputs, dtype=torch.float64, device=self._device)

    def variance(self, like: Tensor) -> Tensor:
        """σ², ``(outputs,)``, in the type of a tensor, single precision or better."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        return like.new_ones((), dtype=dtype) if self.values is None else self.values[1].to(dtype)

    @torch.no_grad()
    def follow_(self, residuals: Tensor) -> None:
        """Take the residuals of new samples, ``(n, outputs)``, into σ²."""
        assert self.values is not None
        count, variance = self.values
        squares, degrees = residuals.double().square(), self.degrees_of_freedom
        weights = (degrees + 1) / (degrees + squares / variance)
        rate = (1 / (count + 1)).clamp(min=LEAST_RATE)
        variance.lerp_((weights * squares).mean(0), rate).clamp_(min=SMALLEST)
        count.add_(1)

    def losses(self, residuals: Tensor) -> Tensor:
        """The loss of each sample, ``(n,)``, from residuals ``(n, outputs)``."""
        degrees = self.degrees_of_freedom
        ratios = residuals.square() / (degrees * self.variance(residuals))
        return ratios.log1p().sum(-1) * ((degrees + 1) / 2)

    def likelihood(self, outputs: Tensor) -> StudentT:
        """The distribution around outputs ``(n, outputs)``."""
        return StudentT(outputs, self.variance(outputs), self.degrees_of_freedom)

    def information(self) -> Tensor:
        """Trace of the Fisher information of all locations, a scalar in float64."""
        assert self.values is not None
        degrees = self.degrees_of_freedom
        return (1 / self.values[1]).sum() * ((degrees + 1) / (degrees + 3))

    def divergence(self, before: Tensor, now: Tensor) -> Tensor:
        """A bound of KL(before ‖ now) in nats, ``(n,)``, from outputs ``(n, outputs)``.

        The divergence of two locations has no closed form. Jensen's inequality and
        E[1/(νσ² + r²)] = 1/((ν + 1)σ²) give (ν + 1)/2 · log(1 + δ²/((ν + 1)σ²)) or less for a
        distance δ: the exact value for a Gaussian, and the right growth for long distances.
        """
        degrees = self.degrees_of_freedom
        ratios = (now - before).square() / ((degrees + 1) * self.variance(now))
        return ratios.log1p().sum(-1) * ((degrees + 1) / 2)

    def tensors(self) -> list[Tensor]:
        """What a step changes."""
        return [] if self.values is None else [self.values]

    def state_dict(self) -> dict[str, Tensor]:
        """The scales; empty before the first batch."""
        return {} if self.values is None else {"residuals": self.values}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            CheckpointError: They are no scales.
        """
        given = state.get("residuals")
        valid = given is None or (given.dim() == len(given) == 2 and bool((given > 0).all()))
        if given is not None and not valid:
            raise CheckpointError(
                f"The checkpoint has scales of residuals of shape {tuple(given.shape)}. Must be "
                "positive, of shape (2, outputs)."
            )
        self.values = None if given is None else given.to(self._device, torch.float64, copy=True)
