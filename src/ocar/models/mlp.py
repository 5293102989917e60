"""A plain multi-layer perceptron, and one linear layer, the model of the convex experiments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from ocar.config import require, require_sizes


class MLP(nn.Module):
    """Linear layers with ReLU between them, on the flattened input.

    Args:
        in_features: Numbers in one sample, ``C·H·W`` for an image.
        hidden: Width of each hidden layer; at least one.
        classes: Outputs of ``head``; the learner masks units without a class.
    """

    def __init__(
        self, in_features: int, *, hidden: Sequence[int] = (100, 100), classes: int = 16
    ) -> None:
        super().__init__()
        widths = (in_features, *hidden)
        require_sizes(in_features=in_features, classes=classes)
        valid = min(hidden, default=0) >= 1
        require("hidden", tuple(hidden), valid, "at least one hidden layer of at least 1")
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Penultimate features ``(n, hidden[-1])``, not negative, of inputs ``(n, ...)``."""
        x = x.flatten(1)
        for layer in self.hidden:
            x = functional.relu(layer(x), inplace=True)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits ``(n, classes)`` of inputs ``(n, ...)``."""
        logits: torch.Tensor = self.head(self.features(x))
        return logits


class LinearModel(nn.Module):
    """``head`` alone: linear regression or a linear classifier.

    Args:
        in_features: Numbers in one sample.
        outputs: Numbers predicted for one sample.
    """

    def __init__(self, in_features: int, *, outputs: int = 1) -> None:
        super().__init__()
        require_sizes(in_features=in_features, outputs=outputs)
        self.head = nn.Linear(in_features, outputs)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The flattened input, ``(n, ...)`` to ``(n, in_features)``."""
        return x.flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Predictions ``(n, outputs)`` of inputs ``(n, ...)``."""
        prediction: torch.Tensor = self.head(self.features(x))
        return prediction
