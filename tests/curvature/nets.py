"""Small networks, and what every test does with a curvature."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.curvature import Curvature


class MeanOverLocations(nn.Module):
    """``(n, ..., d)`` to ``(n, d)``: the mean over all dimensions in between."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1, -2).mean(1) if x.dim() > 2 else x


def mlp(sizes: tuple[int, ...] = (5, 4, 3), *, bias: bool = True) -> nn.Sequential:
    """Linear layers with Tanh between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def token_mlp(inputs: int, hidden: int, outputs: int, *, bias: bool = True) -> nn.Sequential:
    """A linear layer applied to every token, Tanh, the mean over tokens, a linear layer."""
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=bias),
        nn.Tanh(),
        MeanOverLocations(),
        nn.Linear(hidden, outputs, bias=bias),
    )


def conv_net(conv: nn.Conv1d | nn.Conv2d, x: Tensor, outputs: int = 3) -> nn.Sequential:
    """A convolution, Tanh, and a linear layer on all of its outputs."""
    with torch.no_grad():
        features = conv(x).flatten(1).shape[1]
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(features, outputs))


def batch_norm_net(outputs: int = 3) -> nn.Sequential:
    """Two batch-normalised convolutions, one grouped and strided, and a linear layer.

    For inputs ``(n, 2, 5, 5)``. Layers with factors: ``"0"``, ``"3"``, ``"7"``.
    """
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, stride=2, groups=2),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, outputs),
    )


NETS: dict[str, Callable[[], tuple[nn.Sequential, Tensor]]] = {
    "mlp": lambda: (mlp(), torch.randn(4, 5)),
    "mlp-no-bias": lambda: (mlp(bias=False), torch.randn(4, 5)),
    "tokens": lambda: (token_mlp(3, 4, 3), torch.randn(4, 3, 3)),
    "conv": lambda: (
        conv_net(nn.Conv2d(2, 3, 3, stride=2, padding=1), torch.zeros(1, 2, 5, 4)),
        torch.randn(4, 2, 5, 4),
    ),
    "groups": lambda: (
        conv_net(nn.Conv1d(2, 4, 3, stride=2, dilation=2, groups=2), torch.zeros(1, 2, 9)),
        torch.randn(4, 2, 9),
    ),
    "batch-norm": lambda: (batch_norm_net(), torch.randn(4, 2, 5, 5)),
}
"""Networks with each kind of layer that has Kronecker factors, and inputs for them."""


def observe(curvature: Curvature, x: Tensor, **options: Tensor | None) -> Tensor:
    """One forward pass and update; the outputs, for a loss."""
    with curvature.record():
        outputs = curvature.model(x)
    curvature.update(outputs, **options)
    return outputs


def set_gradients(model: nn.Module, *, seed: int = 0) -> dict[str, Tensor]:
    """Give every trainable parameter a random gradient, and return copies of them."""
    generator = torch.Generator().manual_seed(seed)
    copies = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.grad = noise.to(parameter.dtype)
            copies[name] = parameter.grad.clone()
    return copies


def cross_entropy_gradients(outputs: Tensor, labels: Tensor, model: nn.Module) -> None:
    """Set the gradients to those of the mean cross-entropy."""
    model.zero_grad()
    functional.cross_entropy(outputs, labels).backward()
