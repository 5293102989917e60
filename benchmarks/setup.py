"""The device, how long to measure, and learners of a benchmark with batches to learn.

The learners have Slim-ResNet18, the settings of the preset and a full memory. Images are noise: the
time of a batch does not depend on what the images show.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.config import require, require_one_of
from ocar.learner import Learner
from ocar.methods.registry import make_settings, preset_settings
from ocar.models.resnet import SlimResNet18
from ocar.rng import derive_seed
from ocar.streams.benchmarks import get_benchmark

PRESET = "split-cifar100"
BATCH, IMAGE = 10, (3, 32, 32)
PREPARED = 16
"""Batches that are prepared before the measurement and repeated in it."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Where to measure, and how thoroughly."""

    device: torch.device
    turns: int = 7
    least: float = 0.3  # seconds of a turn
    width: int = 20  # channels of the first stage of Slim-ResNet18
    library_classes: int = 100  # where another library is compared, whose cost grows with them
    run_batches: int = 200  # of a whole run
    validation: int = 2500  # samples to predict after each batch of a run
    matrix: int = 1024  # rows of the product that shows a CPU's speed; 8 times as many on a GPU

    def __post_init__(self) -> None:
        for name in ("turns", "width", "library_classes", "run_batches", "validation", "matrix"):
            require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        require("least", self.least, 0 <= self.least < float("inf"), "at least 0")

    @classmethod
    def quick(cls, device: torch.device) -> Setup:
        """Small networks and two turns: whether it works, not how fast it is."""
        small = {"width": 2, "library_classes": 4, "run_batches": 8, "validation": 100}
        return cls(device=device, turns=2, least=0.0, matrix=128, **small)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def usual(self) -> bool:
        """Whether the network has the size that the targets are set for."""
        return self.width == 20 and self.library_classes == 100

    @property
    def network(self) -> str:
        """The network in words."""
        return "Slim-ResNet18" if self.width == 20 else f"Slim-ResNet18 of width {self.width}"


def choose_device(name: str) -> torch.device:
    """The device for ``auto``, ``cpu`` or ``cuda``.

    Raises:
        ConfigError: The name is unknown, or there is no such device.
    """
    require_one_of("device", name, ("auto", "cpu", "cuda"))
    return accel.choose_device(name)


def slim_resnet(
    setup: Setup, *, classes: int = 16, seed: int = 0, side: int = IMAGE[1]
) -> nn.Module:
    """The network on the device, with weights from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "model"))
        model = SlimResNet18(side, width=setup.width, classes=classes)
    return model.to(setup.device)


def slim_learner(
    method: str,
    *,
    classes: int,
    setup: Setup,
    seed: int = 0,
    benchmark: str = PRESET,
    changed: Mapping[str, Any] | None = None,
    **options: Any,
) -> Learner:
    """A learner of a benchmark that has seen ``classes`` classes and has a full memory.

    ``changed`` has settings other than those of the preset, ``options`` arguments of a learner.
    """
    values = {**preset_settings(benchmark, method), "classes": range(classes), "seed": seed}
    values |= changed or {}
    settings, transform = make_settings(method, **values)
    image = get_benchmark(benchmark).image_shape
    model = slim_resnet(setup, seed=seed, side=image[1])
    learner = Learner(model, settings, transform=transform, **options)
    count = learner.memory.capacity
    learner.remember(*noise(count, classes=classes, device=setup.device, seed=seed, image=image))
    return learner


def noise(
    count: int,
    *,
    classes: int,
    device: torch.device,
    seed: int = 0,
    image: tuple[int, int, int] = IMAGE,
) -> tuple[Tensor, Tensor]:
    """Images on the device, ``(count, *image)`` uint8, and labels on the CPU."""
    generator = torch.Generator().manual_seed(derive_seed(seed, f"noise/{count}"))
    x = torch.randint(0, 256, (count, *image), generator=generator, dtype=torch.uint8)
    return x.to(device), torch.arange(count) % classes


def learn_batches(learner: Any, x: Tensor, y: Tensor) -> Callable[[], object]:
    """A function that learns the next ten of the samples at each call, over and over."""
    batches = itertools.cycle(zip(x.split(BATCH), y.split(BATCH), strict=True))
    return lambda: learner.learn(*next(batches))


def stream_batch(
    learner: Learner, *, classes: int, seed: int = 0, image: tuple[int, int, int] = IMAGE
) -> Callable[[], object]:
    """A function that learns one batch of noise at each call."""
    count, device = PREPARED * BATCH, learner.device
    x, y = noise(count, classes=classes, device=device, seed=seed + 1, image=image)
    return learn_batches(learner, x, y)
