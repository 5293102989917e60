"""One linear layer: the model of the convex experiments."""

from __future__ import annotations

import torch
from torch import nn

from ocar.errors import ConfigError


class LinearModel(nn.Module):
    """``head`` alone: linear regression or a linear classifier.

    Args:
        in_features: Numbers in one sample.
        outputs: Numbers predicted for one sample.
    """

    def __init__(self, in_features: int, *, outputs: int = 1) -> None:
        super().__init__()
        if in_features < 1 or outputs < 1:
            raise ConfigError(f"Invalid {in_features=}, {outputs=}. Must both be at least 1.")
        self.head = nn.Linear(in_features, outputs)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The flattened input, ``(n, ...)`` to ``(n, in_features)``."""
        return x.flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Predictions ``(n, outputs)`` of inputs ``(n, ...)``."""
        prediction: torch.Tensor = self.head(self.features(x))
        return prediction
