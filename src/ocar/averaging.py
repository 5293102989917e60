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
        rate: Weight of the newest weights.

    Attributes:
        values: The average of each trainable parameter, by name.
    """

    def __init__(self, model: nn.Module, rate: float) -> None:
        self.model = model
        self.rate = rate
        self.values = {name: p.detach().clone() for name, p in self._trainable().items()}

    def _trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def follow(self) -> None:
        """Move towards the weights; new units of the head start with their own weights."""
        weights = self._trainable()
        for name, parameter in weights.items():
            average = self.values[name]
            if average.shape != parameter.shape:
                grown = parameter.detach().clone()
                grown[: average.shape[0]] = average
                self.values[name] = grown
        averages = [self.values[name] for name in weights]
        torch._foreach_lerp_(averages, [p.detach() for p in weights.values()], self.rate)

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Take saved averages.

        Raises:
            CheckpointError: They are of another model.
        """
        weights = self._trainable()
        check_names("moving average", values, weights)
        self.values = {n: t.to(weights[n].device, copy=True) for n, t in values.items()}
