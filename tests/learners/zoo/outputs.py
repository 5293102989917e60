"""Models that return something else than one tensor."""

from __future__ import annotations

from torch import nn

from zoo.parts import Group, Net, head, mlp

zoo = Group("outputs")

zoo(
    "returns a tuple",
    lambda: Net(lambda m, x: (m.inner(x), x), inner=mlp()),
    refused="as a tensor; it returned a tuple",
)
zoo(
    "returns a dict",
    lambda: Net(lambda m, x: {"logits": m.inner(x)}, inner=mlp()),
    refused="as a tensor; it returned a dict",
)
zoo(
    "wrapper that picks the logits",
    lambda: Net(
        lambda m, x: m.inner(x)["logits"], inner=Net(lambda m, x: {"logits": m.net(x)}, net=mlp())
    ),
)
zoo(
    "one dimension too many",
    lambda: Net(lambda m, x: m.inner(x).unsqueeze(1), inner=mlp()),
    refused="must return shape (n, 4), the outputs of layer 'inner.2'; it returned (7, 1, 4)",
)
zoo(
    "an output for each place",
    lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), head()),
    fed="sequences",
    refused="it returned (7, 8, 4) for 7 samples",
)
zoo(
    "a mean of outputs for each place",
    lambda: Net(
        lambda m, x: m.inner(x).mean(1), inner=nn.Sequential(nn.Linear(4, 16), nn.ReLU(), head())
    ),
    fed="sequences",
)
