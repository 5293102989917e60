"""What is measured on: the device, how long to measure, and learners with a stream to learn.

The learners are those of Split-CIFAR100: Slim-ResNet18, the settings selected for the benchmark, a
memory that is full. Images are noise; how long a batch takes does not depend on what it shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ocar.config import require
from ocar.errors import ConfigError
from ocar.guard import Guard
from ocar.learner import Learner
from ocar.methods.registry import make_settings, preset_settings
from ocar.models.resnet import SlimResNet18
from ocar.rng import derive_seed

PRESET = "split-cifar100"
BATCH, IMAGE = 10, (3, 32, 32)
PREPARED = 16
"""Batches that are made before the measuring begins and then come again and again."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Where to measure, and how thoroughly."""

    device: torch.device
    """Where the work is done."""

    turns: int = 7
    """Turns of each side."""

    least: float = 0.3
    """Seconds that a turn should last."""

    width: int = 20
    """Channels of the first stage of Slim-ResNet18; 20 is the usual one."""

    library_classes: int = 100
    """Classes where another library is compared, whose cost grows with them."""

    run_batches: int = 200
    """Batches of a run, where several runs share a GPU."""

    validation: int = 2500
    """Samples to predict after each batch of such a run."""

    matrix: int = 1024
    """Rows of the matrices whose product shows what a CPU can do; eight times as many on a GPU."""

    def __post_init__(self) -> None:
        for name in ("turns", "width", "library_classes", "run_batches", "validation", "matrix"):
            value = getattr(self, name)
            require(name, value, value >= 1, "at least 1")
        require("least", self.least, 0 <= self.least < float("inf"), "at least 0")

    @classmethod
    def quick(cls, device: torch.device) -> Setup:
        """Small networks and two turns: whether it works, not how fast it is."""
        return cls(
            device=device,
            turns=2,
            least=0.0,
            width=2,
            library_classes=4,
            run_batches=8,
            validation=100,
            matrix=128,
        )

    @property
    def usual(self) -> bool:
        """Whether the network is the one that targets speak of."""
        return self.width == 20 and self.library_classes == 100

    @property
    def network(self) -> str:
        """The network in words."""
        return "Slim-ResNet18" if self.width == 20 else f"Slim-ResNet18 of width {self.width}"


def choose_device(name: str) -> torch.device:
    """The device that ``auto``, ``cpu`` or ``cuda`` stands for.

    Raises:
        ConfigError: There is no such device.
    """
    available = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"Invalid device={name!r}. Must be 'auto', 'cpu' or 'cuda'.")
    if name == "cuda" and not available:
        raise ConfigError("Invalid device='cuda'. PyTorch finds no CUDA device here.")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def slim_resnet(setup: Setup, *, classes: int = 16, seed: int = 0) -> nn.Module:
    """The network, on the device, with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "model"))
        model = SlimResNet18(IMAGE[1], width=setup.width, classes=classes)
    return model.to(setup.device)


def slim_learner(
    method: str,
    *,
    classes: int,
    setup: Setup,
    capture: bool = True,
    guard: Guard | None = Guard(),  # noqa: B008 (it is frozen)
    seed: int = 0,
) -> Learner:
    """A learner in the middle of Split-CIFAR100, with so many classes and a full memory."""
    values = {**preset_settings(PRESET, method), "classes": range(classes), "seed": seed}
    settings, transform = make_settings(method, **values)
    model = slim_resnet(setup, seed=seed)
    learner = Learner(model, settings, transform=transform, capture=capture, guard=guard)
    x, y = noise(settings.memory, classes=classes, device=setup.device, seed=seed)
    learner.remember(x, y)
    return learner


def noise(
    count: int, *, classes: int, device: torch.device, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Images on the device, ``(count, 3, 32, 32)`` uint8, and labels on the host, each in turn."""
    generator = torch.Generator().manual_seed(derive_seed(seed, f"noise/{count}"))
    x = torch.randint(0, 256, (count, *IMAGE), generator=generator, dtype=torch.uint8)
    return x.to(device), torch.arange(count) % classes


def stream_batch(learner: Learner, *, classes: int, seed: int = 0) -> Callable[[], object]:
    """What learns one batch of a stream when it is called, another each time."""
    x, y = noise(PREPARED * BATCH, classes=classes, device=learner.device, seed=seed + 1)
    batches = itertools.cycle(zip(x.split(BATCH), y.split(BATCH), strict=True))
    return lambda: learner.learn(*next(batches))
