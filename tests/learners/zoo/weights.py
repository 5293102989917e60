"""Shared, frozen and computed weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from zoo.parts import Group, LoRA, Net, head, mlp

zoo = Group("weights")


def shared_weight() -> nn.Module:
    """Two layers with one weight."""
    a, b = nn.Linear(16, 16), nn.Linear(16, 16)
    b.weight = a.weight
    return Net(
        lambda m, x: m.head(m.b(m.a(m.first(x)).relu()).relu()),
        first=nn.Linear(6, 16),
        a=a,
        b=b,
        head=head(),
    )


def frozen_norm() -> nn.Module:
    """A frozen convolution with its BatchNorm, as pretrained parts are used."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), head(288))
    model[:2].requires_grad_(False)
    return model


def pruned() -> nn.Module:
    """A network with a pruned first layer."""
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.3)
    return model


class Positive(nn.Module):
    """A parametrisation of one's own."""

    def forward(self, weight: Tensor) -> Tensor:
        """All positive."""
        return F.softplus(weight)


def positive() -> nn.Module:
    """A network with positive weights in its middle."""
    layer = nn.Linear(16, 16)
    parametrize.register_parametrization(layer, "bias", Positive())
    return mlp(layer)


def hypernetwork() -> nn.Module:
    """A layer whose weights another layer makes from the inputs."""
    return Net(
        lambda m, x: m.head(torch.einsum("ni,nio->no", x, m.hyper(x).view(-1, 6, 16)).tanh()),
        hyper=nn.Linear(6, 96),
        head=head(),
    )


zoo(
    "layer called twice",
    lambda: Net(
        lambda m, x: m.head(m.b(m.b(m.a(x).relu()).relu())),
        a=nn.Linear(6, 16),
        b=nn.Linear(16, 16),
        head=head(),
    ),
)
zoo("two layers that share a weight", shared_weight)
zoo(
    "frozen first layer",
    lambda: nn.Sequential(nn.Linear(6, 16).requires_grad_(False), nn.ReLU(), head()),
)
zoo("frozen convolution and BatchNorm", frozen_norm, fed="images")
zoo(
    "adapter behind a frozen layer",
    lambda: nn.Sequential(
        nn.Linear(6, 16).requires_grad_(False),
        nn.ReLU(),
        nn.Linear(16, 4),
        nn.ReLU(),
        nn.Linear(4, 16),
        head(),
    ),
)
zoo("LoRA in the middle", lambda: nn.Sequential(LoRA(nn.Linear(6, 16)), nn.ReLU(), head()))
zoo("weight_norm in the middle", lambda: mlp(parametrizations.weight_norm(nn.Linear(16, 16))))
zoo("spectral_norm in the middle", lambda: mlp(parametrizations.spectral_norm(nn.Linear(16, 16))))
zoo("spectral_norm of old in the middle", lambda: mlp(nn.utils.spectral_norm(nn.Linear(16, 16))))
zoo("orthogonal weights in the middle", lambda: mlp(parametrizations.orthogonal(nn.Linear(16, 16))))
zoo("parametrisation of one's own", positive)
zoo("pruned layer", pruned)
zoo("hypernetwork", hypernetwork)
