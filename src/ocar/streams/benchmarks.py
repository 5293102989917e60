"""The benchmarks by name, with the settings of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from ocar import datasets
from ocar.augment import CropFlip, Normalize
from ocar.datasets import Arrays
from ocar.errors import ConfigError
from ocar.streams.benchmark import Benchmark, Kind, stream_over
from ocar.streams.convex import ConvexStream
from ocar.streams.indexed import IndexedStream
from ocar.streams.samples import View
from ocar.streams.views import Permute, Rotate

__all__ = ["BENCHMARKS", "Benchmark", "Kind", "get_benchmark", "make_stream", "stream_over"]

CIFAR100 = Normalize(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
TINY_IMAGENET = Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def _digits(root: Path) -> Arrays:
    return datasets.load_digits()


def _permutations(seed: int) -> Sequence[View]:
    return [Permute(seed, f"permutation/{task}") for task in range(20)]


def _rotations(seed: int) -> Sequence[View]:
    return [Rotate(180 / 20 * task) for task in range(20)]


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
        normalize=CIFAR100,
        augment=CropFlip(padding=4, flip=True),
    ),
    Benchmark(
        name="split-tinyimagenet",
        description="Tiny ImageNet, 20 tasks of 10 classes, Slim-ResNet18",
        loader=datasets.load_tiny_imagenet,
        image_shape=(3, 64, 64),
        classes=200,
        tasks=20,
        model="slim-resnet18",
        memory=4000,
        passes=9,
        normalize=TINY_IMAGENET,
        augment=CropFlip(padding=8, flip=True),
    ),
    Benchmark(
        name="clear",
        description="CLEAR-10, 11 classes in 10 buckets of time, ResNet18",
        kind="domain-incremental",
        loader=datasets.load_clear10,
        image_shape=(3, 224, 224),
        classes=11,
        tasks=10,
        model="resnet18",
        memory=2000,
        passes=10,
        normalize=IMAGENET,
        # The published crop moves along the longer side, of which the cache keeps the middle.
        augment=CropFlip(padding=0, flip=True),
    ),
    Benchmark(
        name="pacs",
        description="PACS at 64 px, 7 classes: photo, art painting, cartoon, sketch; Slim-ResNet18",
        kind="domain-incremental",
        loader=datasets.load_pacs,
        domains=("photo", "art_painting", "cartoon", "sketch"),
        split_seed=0,
        image_shape=(3, 64, 64),
        classes=7,
        tasks=4,
        model="slim-resnet18",
        memory=500,
        passes=3,
        normalize=IMAGENET,
        augment=CropFlip(padding=8, flip=True),
    ),
    Benchmark(
        name="convex",
        description="10 linear regressions of 10 inputs, 1000 samples each; needs no download",
        kind="regression",
        loader=None,
        image_shape=(1, 1, 10),
        classes=0,
        tasks=10,
        samples=1000,
        model="linear",
        outputs=1,
        memory=500,
        passes=1,
        normalize=None,
        validation=0.0,
    ),
    Benchmark(
        name="permuted-mnist",
        description="MNIST, 20 tasks of 1000 samples, each with its pixels in another order, MLP",
        kind="domain-incremental",
        loader=datasets.load_mnist,
        views=_permutations,
        samples=1000,
        image_shape=(1, 28, 28),
        classes=10,
        tasks=20,
        model="mlp",
        memory=500,
        passes=3,
        normalize=Normalize(),
    ),
    Benchmark(
        name="rotated-mnist",
        description="MNIST, 20 tasks of 1000 samples, each turned 9 degrees further, MLP",
        kind="domain-incremental",
        loader=datasets.load_mnist,
        views=_rotations,
        samples=1000,
        image_shape=(1, 28, 28),
        classes=10,
        tasks=20,
        model="mlp",
        memory=500,
        passes=3,
        normalize=Normalize(),
    ),
    Benchmark(
        name="superclass-cifar100",
        description="CIFAR-100's 20 superclasses, 5 tasks with a class of each, Slim-ResNet18",
        kind="domain-incremental",
        loader=datasets.load_cifar100_superclasses,
        image_shape=(3, 32, 32),
        classes=20,
        tasks=5,
        model="slim-resnet18",
        memory=2000,
        passes=3,
        normalize=CIFAR100,
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
    blurry: float = 0.0,
    device: torch.device | str = "cpu",
) -> IndexedStream:
    """The stream of a benchmark.

    Args:
        name: One of :data:`BENCHMARKS`.
        seed: Decides class order, validation data and the order of samples.
        data_root: Where the data sets are; ``OCAR_DATA`` or the user's data folder if not given.
        iid: All data in one task, the benchmark's upper reference.
        blurry: Part of each task's samples that change places with other tasks', see
            :func:`~ocar.streams.blur.blur`.
        device: Where to keep the data and give the batches.
    """
    benchmark = get_benchmark(name)
    if benchmark.loader is None:
        return ConvexStream(
            tasks=benchmark.tasks,
            features=benchmark.image_shape[-1],
            samples=benchmark.samples or 1000,
            batch_size=benchmark.batch_size,
            seed=seed,
            iid=iid,
            blurry=blurry,
            device=device,
        )
    root = datasets.data_root() if data_root is None else Path(data_root)
    arrays = _load(benchmark.loader, root, torch.device(device))
    stream = stream_over(arrays, benchmark, seed=seed, iid=iid, blurry=blurry)
    stream.data = arrays
    return stream


_loaded: WeakValueDictionary[object, Arrays] = WeakValueDictionary()
_loading = threading.Lock()


def _load(loader: Callable[[Path], Arrays], root: Path, device: torch.device) -> Arrays:
    """A data set on a device; streams that are on one GPU at the same time share it."""
    if device.type == "cpu":
        return loader(root)
    key = loader, root.resolve(), device
    with _loading:
        arrays = _loaded.get(key)
        if arrays is None:
            arrays = _loaded[key] = loader(root).to(device)
    return arrays
