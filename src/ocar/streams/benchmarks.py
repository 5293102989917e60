"""The benchmarks by name: a stream, a model and the settings of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args
from weakref import WeakValueDictionary

import torch

from ocar import datasets
from ocar.augment import CropFlip, Normalize
from ocar.config import require_one_of
from ocar.datasets import Arrays
from ocar.datasets.texts import WordLlamaEmbedding
from ocar.errors import ConfigError
from ocar.registry import Registry
from ocar.streams.arrays import ArrayStream
from ocar.streams.convex import ConvexStream
from ocar.streams.indexed import IndexedStream, View
from ocar.streams.split import ClassIncremental, DomainIncremental, Splits
from ocar.streams.views import Permute, Rotate, in_views


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A stream with the model and the settings that a learner gets for it."""

    name: str
    description: str  #: One line about it.
    #: What changes from task to task: the classes, the domain, or the function to regress.
    kind: Literal["class-incremental", "domain-incremental", "regression"] = "class-incremental"
    loader: Callable[[Path], Arrays] | None = None  #: From the data root to the data.
    #: Makes the stream itself, from ``seed``, ``iid``, ``blurry`` and ``device``, if there is no
    #: data to load.
    maker: Callable[..., IndexedStream] | None = None
    image_shape: tuple[int, int, int]  #: Channels, height, width; ``(1, 1, d)`` for d plain inputs.
    classes: int  #: Classes in the whole stream; 0 in regression.
    tasks: int  #: Tasks; in a class-incremental stream they have equally many classes.
    model: str  #: Name of the model, for ``make_model``.
    memory: int  #: Samples that a learner may keep.
    passes: int  #: Gradient steps on each batch (S).
    normalize: Normalize | None  #: Normalisation of the images.
    augment: CropFlip | None = None  #: Augmentation of new and replayed images.
    standardize: bool | None = False  #: As in the settings of a learner.
    batch_size: int = 10  #: New samples in a batch.
    replay_size: int = 10  #: Replayed samples in a batch.
    validation: float = 0.05  #: Fraction of each task's training data kept for validation.
    outputs: int | None = None  #: Outputs of the model, if they do not stand for classes.
    domains: tuple[str, ...] | None = None  #: Order of the domains; by default the data set's.
    #: From the seed to one view a task, if the tasks are views of one data set.
    views: Callable[[int], Sequence[View]] | None = None
    samples: int | None = None  #: Training samples of each view's task.
    by_domain: bool = False  #: Class-incremental, but the classes of a domain follow each other.
    split_seed: int | None = None  #: Seed of the validation data; by default the run's.
    #: Usual class order and validation data; ``"published"`` if the paper has numbers of it.
    splits: Splits = "own"

    def __post_init__(self) -> None:
        require_one_of("splits", self.splits, get_args(Splits))
        if (self.loader is None) == (self.maker is None):
            raise ConfigError(
                f"{self.name}: give either a loader of data or a maker of the stream."
            )

    @property
    def likelihood(self) -> Literal["categorical", "gaussian"]:
        """What learners predict: classes, or numbers with a squared error."""
        return "gaussian" if self.kind == "regression" else "categorical"

    @property
    def increments(self) -> Literal["classes", "domains"]:
        """What is new in a task."""
        return "classes" if self.kind == "class-incremental" else "domains"

    @property
    def n_new(self) -> int | None:
        """New classes in each task; None if there are none."""
        return self.classes // self.tasks if self.kind == "class-incremental" else None

    def choose_splits(self, splits: Splits | None) -> Splits:
        """The given splits, or the usual ones; raise ``ConfigError`` if it does not have them."""
        if splits is None:
            return self.splits
        require_one_of("splits", splits, get_args(Splits))
        if splits == "published" != self.splits:
            raise ConfigError(
                f"Invalid splits='published' for {self.name}: there are none. Must be 'own'."
            )
        return splits

    def learner_settings(self) -> dict[str, Any]:
        """The settings that it fixes for every learner."""
        settings: dict[str, Any] = {
            "memory": self.memory,
            "replay_batch": self.replay_size,
            "passes": self.passes,
            "normalize": self.normalize,
            "standardize": self.standardize,
            "augment": self.augment,
        }
        if self.likelihood == "gaussian":
            settings |= {"likelihood": self.likelihood, "memory_kind": "reservoir"}
        return settings

    def model_settings(self) -> dict[str, Any]:
        """The arguments of ``make_model`` for its model.

        The model has room for all classes. A smaller one would grow, but on a GPU every CUDA graph
        would be recorded again each time.
        """
        room = max(16, 1 << (self.classes - 1).bit_length())
        outputs = room if self.outputs is None else self.outputs
        return {"name": self.model, "image_shape": self.image_shape, "classes": outputs}


CIFAR100 = Normalize(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
TINY_IMAGENET = Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

_SPLIT_MNIST = Benchmark(
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
)
_PERMUTED_MNIST = replace(
    _SPLIT_MNIST,
    name="permuted-mnist",
    description="MNIST, 20 tasks of 1000 samples, each with its pixels in another order, MLP",
    kind="domain-incremental",
    views=lambda seed: [Permute(seed, f"permutation/{task}") for task in range(20)],
    samples=1000,
    tasks=20,
    memory=500,
)
_SPLIT_CIFAR100 = Benchmark(
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
    splits="published",
)
_CLINC150 = Benchmark(
    name="clinc150",
    description="CLINC150, 10 domains in turn, 5 new intents at a time, wordllama, MLP 256-256",
    loader=partial(datasets.load_clinc150, encode=WordLlamaEmbedding()),
    image_shape=(1, 1, 256),
    classes=150,
    tasks=30,
    by_domain=True,
    model="mlp-256",
    memory=1500,
    passes=3,
    normalize=None,
)

_ALL = (
    replace(
        _SPLIT_MNIST,
        name="split-digits",
        description="scikit-learn's 8×8 digits, 5 tasks of 2 classes, MLP; needs no download",
        loader=lambda root: datasets.load_digits(),
        image_shape=(1, 8, 8),
    ),
    _SPLIT_MNIST,
    _SPLIT_CIFAR100,
    replace(
        _SPLIT_CIFAR100,
        name="split-tinyimagenet",
        description="Tiny ImageNet, 20 tasks of 10 classes, Slim-ResNet18",
        loader=datasets.load_tiny_imagenet,
        image_shape=(3, 64, 64),
        classes=200,
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
        # The published crop moves along the longer side; the cache keeps only its centre.
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
        maker=ConvexStream,
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
    _PERMUTED_MNIST,
    replace(
        _PERMUTED_MNIST,
        name="rotated-mnist",
        description="MNIST, 20 tasks of 1000 samples, each turned 9 degrees further, MLP",
        views=lambda seed: [Rotate(180 / 20 * task) for task in range(20)],
    ),
    _CLINC150,
    replace(
        _CLINC150,
        name="clinc150-tokens",
        description="CLINC150 likewise, ids of hashed words, transformer from scratch",
        loader=datasets.load_clinc150,
        image_shape=(1, 1, 24),
        model="text-transformer",
    ),
    replace(
        _SPLIT_CIFAR100,
        name="superclass-cifar100",
        description="CIFAR-100's 20 superclasses, 5 tasks with a class of each, Slim-ResNet18",
        kind="domain-incremental",
        loader=datasets.load_cifar100_superclasses,
        classes=20,
        tasks=5,
        splits="own",
    ),
)

BENCHMARKS: Registry[Benchmark] = Registry("benchmark", {one.name: one for one in _ALL})
"""The benchmarks by name; others may be added."""


def get_benchmark(name: str) -> Benchmark:
    """The benchmark called ``name``; the error for an unknown one lists all names."""
    return BENCHMARKS.find(name)


def make_stream(
    name: str,
    *,
    seed: int = 0,
    data_root: Path | str | None = None,
    iid: bool = False,
    blurry: float = 0.0,
    splits: Splits | None = None,
    device: torch.device | str = "cpu",
) -> IndexedStream:
    """The stream of a benchmark.

    Args:
        name: One of :data:`BENCHMARKS`.
        seed: Seed of class order, validation data and the order of samples.
        data_root: The folder with the data sets; by default ``OCAR_DATA`` or the user's data
            folder.
        iid: All data in one task, the benchmark's upper reference.
        blurry: Fraction of each task's samples that are exchanged with other tasks, see
            :func:`~ocar.streams.blur.blur`.
        splits: ``"published"`` for the class order and validation data of the paper's runs, which
            have seeds 0 to 4, ``"own"`` for others. By default published, if the benchmark has
            such splits: Split-CIFAR100 and Split-TinyImageNet.
        device: Where to keep the data and give the batches.
    """
    benchmark = get_benchmark(name)
    splits = benchmark.choose_splits(splits)
    if benchmark.maker is not None:
        return benchmark.maker(seed=seed, iid=iid, blurry=blurry, device=device)
    assert benchmark.loader is not None
    root = datasets.data_root() if data_root is None else Path(data_root)
    arrays = _load(benchmark.loader, root, torch.device(device))
    stream = stream_over(arrays, benchmark, seed=seed, iid=iid, blurry=blurry, splits=splits)
    stream.data = arrays
    return stream


def stream_over(
    arrays: Arrays,
    benchmark: Benchmark,
    *,
    seed: int = 0,
    iid: bool = False,
    blurry: float = 0.0,
    splits: Splits | None = None,
) -> IndexedStream:
    """The stream that a benchmark makes of data, see :func:`make_stream`."""
    common: dict[str, Any] = {"seed": seed, "iid": iid, "blurry": blurry}
    common |= {"batch_size": benchmark.batch_size, "validation": benchmark.validation}
    if benchmark.kind == "class-incremental":
        common |= {"by_domain": benchmark.by_domain, "splits": benchmark.choose_splits(splits)}
        return ClassIncremental(arrays, tasks=benchmark.tasks, **common)
    common["split_seed"] = benchmark.split_seed
    if benchmark.views is None:
        return DomainIncremental(arrays, order=benchmark.domains, **common)
    tasks = in_views(arrays, benchmark.views(seed), samples=benchmark.samples, seed=seed)
    return ArrayStream(tasks, **common)


_loaded: WeakValueDictionary[object, Arrays] = WeakValueDictionary()
_loading = threading.Lock()


def _load(loader: Callable[[Path], Arrays], root: Path, device: torch.device) -> Arrays:
    """A data set on a device; concurrent streams on one GPU share it."""
    if device.type == "cpu":
        return loader(root)
    key = loader, root.resolve(), device
    with _loading:
        arrays = _loaded.get(key)
        if arrays is None:
            arrays = _loaded[key] = loader(root).to(device)
    return arrays
