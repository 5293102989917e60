"""Layers that draw random numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.parts import Group, Net, conv, head, mlp

zoo = Group("random numbers")


class DropPath(nn.Module):
    """Stochastic depth, decided on the host for a whole batch."""

    def __init__(self, inner: nn.Module, rate: float) -> None:
        super().__init__()
        self.inner, self.rate = inner, rate

    def forward(self, x: Tensor) -> Tensor:
        """The sum, or the input alone."""
        if self.training and float(torch.rand(())) < self.rate:
            return x
        outputs: Tensor = x + self.inner(x)
        return outputs


zoo("Dropout", lambda: mlp(nn.Dropout(0.2)))
zoo("AlphaDropout", lambda: mlp(nn.AlphaDropout(0.2)))
zoo("Dropout2d", lambda: conv(nn.Dropout2d(0.2)), fed="images")
zoo(
    "functional dropout",
    lambda: Net(
        lambda m, x: m.head(F.dropout(m.a(x).relu(), 0.2, m.training)),
        a=nn.Linear(6, 16),
        head=head(),
    ),
)
zoo(
    "dropout in eval mode too",
    lambda: Net(
        lambda m, x: m.head(F.dropout(m.a(x).relu(), 0.1, True)), a=nn.Linear(6, 16), head=head()
    ),
)
zoo("RReLU", lambda: mlp(nn.RReLU()))
zoo("stochastic depth", lambda: mlp(DropPath(nn.Linear(16, 16), 0.3)))
zoo(
    "Gumbel softmax",
    batches=120,
    make=lambda: Net(
        lambda m, x: m.head(m.a(x).relu() * F.gumbel_softmax(m.g(x), tau=2.0)),
        a=nn.Linear(6, 16),
        g=nn.Linear(6, 16),
        head=head(),
    ),
)
zoo(
    "Gaussian noise",
    lambda: Net(
        lambda m, x: m.head((m.a(x) + 0.1 * torch.randn(len(x), 16)).relu()),
        a=nn.Linear(6, 16),
        head=head(),
    ),
)
zoo(
    "reparametrised bottleneck",
    lambda: Net(
        lambda m, x: m.head(m.mean(x) + torch.randn_like(x[:, :1]) * (m.scale(x) - 3).exp()),
        mean=nn.Linear(6, 16),
        scale=nn.Linear(6, 16),
        head=head(),
    ),
)
zoo(
    "FractionalMaxPool2d",
    lambda: conv(nn.FractionalMaxPool2d(2, output_size=3), area=9),
    fed="images",
)
