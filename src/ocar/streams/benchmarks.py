"""The benchmarks by name: data, split, model and the settings of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ocar.errors import ConfigError
from ocar.images import CropFlip, Normalize
from ocar.streams import datasets
from ocar.streams.datasets import Arrays
from ocar.streams.split import ClassIncremental


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A stream with what a learner is given to meet it."""

    name: str
    """What it is called."""

    description: str
    """One line about it."""

    loader: Callable[[Path], Arrays]
    """From the data root to the data."""

    image_shape: tuple[int, int, int]
    """Channels, height and width of the images."""

    classes: int
    """Classes in the whole stream."""

    tasks: int
    """Tasks, each with equally many classes."""

    model: str
    """Name of the model, for ``make_model``."""

    memory: int
    """Samples that a learner may keep."""

    passes: int
    """Gradient steps on each batch (S)."""

    normalize: Normalize
    """Normalisation of the images."""

    augment: CropFlip | None = None
    """Augmentation of new and replayed images."""

    batch_size: int = 10
    """New samples in a batch."""

    replay_size: int = 10
    """Replayed samples in a batch."""

    validation: float = 0.05
    """Part of each task's training data kept for validation."""

    def learner_settings(self) -> dict[str, Any]:
        """What it fixes for every learner, under the names of the learners' settings."""
        return {
            "memory": self.memory,
            "replay_batch": self.replay_size,
            "passes": self.passes,
            "normalize": self.normalize,
            "augment": self.augment,
        }


def _digits(root: Path) -> Arrays:
    return datasets.load_digits()


_ALL = (
    Benchmark(
        name="split-digits",
        description="scikit-learn's 8×8 digits, 5 tasks of 2 classes, MLP; needs no download",
        loader=_digits,
        image_shape=(1, 8, 8),
        classes=10,
        tasks=5,
        model="mlp",
        memory=100,
        passes=3,
        normalize=Normalize(),
    ),
    Benchmark(
        name="split-mnist",
        description="MNIST, 5 tasks of 2 classes, MLP 784-100-100",
        loader=datasets.load_mnist,
        image_shape=(1, 28, 28),
        classes=10,
        tasks=5,
        model="mlp",
        memory=100,
        passes=3,
        normalize=Normalize(),
    ),
    Benchmark(
        name="split-cifar100",
        description="CIFAR-100, 20 tasks of 5 classes, Slim-ResNet18",
        loader=datasets.load_cifar100,
        image_shape=(3, 32, 32),
        classes=100,
        tasks=20,
        model="slim-resnet18",
        memory=2000,
        passes=3,
        normalize=Normalize(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
        augment=CropFlip(padding=4, flip=True),
    ),
)

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}
"""The benchmarks by name."""


def get_benchmark(name: str) -> Benchmark:
    """The benchmark called ``name``, or an error that lists those there are."""
    if name not in BENCHMARKS:
        raise ConfigError(f"Invalid benchmark {name!r}. Must be one of {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def make_stream(
    name: str,
    *,
    seed: int = 0,
    data_root: Path | str | None = None,
    iid: bool = False,
    device: torch.device | str = "cpu",
) -> ClassIncremental:
    """The stream of a benchmark.

    Args:
        name: One of :data:`BENCHMARKS`.
        seed: Decides class order, validation data and the order of samples.
        data_root: Where the data sets are; ``OCAR_DATA`` or the user's data folder if not given.
        iid: All classes in one task, the benchmark's upper reference.
        device: Where to keep the data and give the batches.
    """
    benchmark = get_benchmark(name)
    root = datasets.data_root() if data_root is None else Path(data_root)
    return ClassIncremental(
        benchmark.loader(root).to(device),
        tasks=benchmark.tasks,
        batch_size=benchmark.batch_size,
        validation=benchmark.validation,
        seed=seed,
        iid=iid,
    )
