"""A moving average of the weights, for prediction."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ocar.state import check_names


class WeightAverage:
    """Follows the trainable weights of a model.

    Args:
        model: The model.
        rate: Weight of the newest weights; None to average nothing.

    Attributes:
        values: The average of each trainable parameter, by name.
    """

    def __init__(self, model: nn.Module, rate: float | None) -> None:
        self.model = model
        self.rate = rate
        self.values = {name: p.detach().clone() for name, p in self._averaged().items()}

    def _averaged(self) -> dict[str, nn.Parameter]:
        if self.rate is None:
            return {}
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def fit(self) -> None:
        """Make room for new units of the head, which start with their own weights."""
        for name, parameter in self._averaged().items():
            average = self.values[name]
            if average.shape != parameter.shape:
                grown = parameter.detach().clone()
                grown[: average.shape[0]] = average
                self.values[name] = grown

    @torch.no_grad()
    def follow(self) -> None:
        """Move towards the weights."""
        if self.rate is not None:
            weights = self._averaged()
            averages = [self.values[name] for name in weights]
            torch._foreach_lerp_(averages, [p.detach() for p in weights.values()], self.rate)

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Take saved averages; a ``CheckpointError`` if they are of another model."""
        weights = self._averaged()
        check_names("moving average", values, weights)
        self.values = {n: t.to(weights[n].device, copy=True) for n, t in values.items()}
