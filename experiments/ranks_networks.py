"""Two small networks, and a counter of the operators that a batch calls, for other scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ocar.models.resnet import SlimResNet18

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MLP, 2 x 400 units": lambda: nn.Sequential(
        *(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(768, 400), nn.ReLU()),
        *(nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)),
    ),
    "ResNet18, width 8": lambda: SlimResNet18(width=8, classes=10),
}


class Operators(TorchDispatchMode):
    """Counts calls of operators, most of which launch a kernel on a GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
