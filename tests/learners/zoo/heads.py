"""Output layers of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from zoo.parts import FIXED, UNITS, Group, LoRA, Net, head, mlp, wide

zoo = Group("heads")


class CosineHead(nn.Linear):
    """A linear layer of unit vectors."""

    def forward(self, x: Tensor) -> Tensor:
        """Ten times the cosine."""
        return 10 * F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))


def named_twice() -> nn.Module:
    """A head that is also the last of a list."""
    layers = nn.ModuleList([nn.Linear(6, 16), head()])
    return Net(lambda m, x: m.head(m.layers[0](x).relu()), layers=layers, head=layers[1])


def with_spare(run: Callable[[Any, Tensor], Any], **parts: nn.Module) -> nn.Module:
    """A network with one more linear layer, registered last."""
    return Net(run, a=nn.Linear(6, 16), head=head(), **parts)


def after(*end: nn.Module) -> nn.Module:
    """A network with something after its head."""
    return nn.Sequential(*mlp(), *end)


zoo(
    "head of another class, a cosine",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), CosineHead(16, UNITS, bias=False)),
)
zoo("head under two names", named_twice)
zoo(
    "head that is not registered last",
    lambda: Net(lambda m, x: m.head(m.a(x).relu()), head=head(), a=nn.Linear(6, 16)),
    refused="must return shape (n, 16), the outputs of layer 'a'",
)
zoo(
    "head that is not registered last, named",
    lambda: Net(lambda m, x: m.head(m.a(x).relu()), head=head(), a=nn.Linear(6, 16)),
    settings={"head": "head"},
)
zoo(
    "unused linear layer of equal width",
    lambda: with_spare(lambda m, x: m.head(m.a(x).relu()), spare=head()),
    refused="Layer 'spare' is taken for the output layer, and Net does not call it",
)
zoo(
    "unused linear layer of equal width, head named",
    lambda: with_spare(lambda m, x: m.head(m.a(x).relu()), spare=head()),
    settings={"head": "head"},
)
zoo(
    "auxiliary output of equal width",
    lambda: with_spare(lambda m, x: (m.spare(h := m.a(x).relu()), m.head(h))[1], spare=head()),
    refused="The outputs of the model are not those of layer 'spare'",
)
zoo(
    "two heads, added",
    lambda: with_spare(lambda m, x: m.head(h := m.a(x).relu()) + m.other(h), other=head()),
    refused="cannot grow as classes appear: with twice as many units the model fails",
)
zoo(
    "head called twice",
    lambda: Net(
        lambda m, x: (m.head(m.a(x).relu()) + m.head(m.b(x).relu())) / 2,
        a=nn.Linear(6, 16),
        b=nn.Linear(6, 16),
        head=head(),
    ),
)
zoo("Softmax at the end", lambda: after(nn.Softmax(1)), refused="The model returns probabilities")
zoo("Sigmoid at the end", lambda: after(nn.Sigmoid()), refused="The model returns probabilities")
zoo("LogSoftmax at the end", lambda: after(nn.LogSoftmax(1)))
zoo(
    "temperature",
    lambda: Net(
        lambda m, x: m.inner(x) / m.heat, inner=mlp(), heat=nn.Parameter(torch.tensor(2.0))
    ),
)
zoo("logits capped by tanh", lambda: Net(lambda m, x: 30 * (m.inner(x) / 30).tanh(), inner=mlp()))
zoo(
    "a scale for each logit",
    lambda: Net(
        lambda m, x: m.inner(x) * m.scale, inner=mlp(), scale=nn.Parameter(torch.ones(UNITS))
    ),
    refused="cannot grow as classes appear: with twice as many units the model fails",
)
zoo(
    "a scale for each logit, classes given",
    lambda: Net(
        lambda m, x: m.inner(x) * m.scale,
        inner=nn.Sequential(nn.Linear(6, 16), nn.ReLU(), wide()),
        scale=nn.Parameter(torch.ones(5)),
    ),
    settings=FIXED,
)
zoo(
    "head under weight_norm",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), parametrizations.weight_norm(head())),
    refused="cannot grow as classes appear: its weight is computed from parametrizations",
)
zoo(
    "head under weight_norm, classes given",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), parametrizations.weight_norm(wide())),
    settings=FIXED,
)
zoo(
    "head under spectral_norm",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), parametrizations.spectral_norm(head())),
    refused="cannot grow as classes appear: its weight is computed from parametrizations",
)
zoo(
    "head under spectral_norm, classes given",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), parametrizations.spectral_norm(wide())),
    settings=FIXED,
)
zoo(
    "head under spectral_norm of old",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.utils.spectral_norm(head())),
    refused="cannot grow as classes appear: its weight is computed from weight_orig, weight_u",
)
zoo(
    "pruned head",
    lambda: nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), prune.l1_unstructured(head(), "weight", 0.3)
    ),
    refused="cannot grow as classes appear: its weight is computed from weight_mask, weight_orig",
)
zoo(
    "head under LoRA",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), LoRA(head())),
    refused="cannot grow as classes appear: with twice as many units the model fails",
)
zoo(
    "head under LoRA, classes given",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), LoRA(wide())),
    settings=FIXED,
)
zoo(
    "frozen head",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), head().requires_grad_(False)),
    refused="The output layer '2' is frozen; it must train",
)
zoo(
    "convolution for a head",
    lambda: nn.Sequential(nn.Conv2d(3, UNITS, 8), nn.Flatten()),
    fed="images",
    refused="Sequential has no nn.Linear layer",
)
