"""What a benchmark is: a stream, a model and what a learner is given to meet them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ocar.augment import CropFlip, Normalize
from ocar.datasets import Arrays
from ocar.errors import ConfigError
from ocar.streams.arrays import ArrayStream
from ocar.streams.domains import DomainIncremental
from ocar.streams.indexed import IndexedStream
from ocar.streams.samples import View
from ocar.streams.split import ClassIncremental
from ocar.streams.views import in_views

Kind = Literal["class-incremental", "domain-incremental", "regression"]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A stream with what a learner is given to meet it."""

    name: str
    """What it is called."""

    description: str
    """One line about it."""

    kind: Kind = "class-incremental"
    """What changes from task to task: the classes, the domain, or the function to regress."""

    loader: Callable[[Path], Arrays] | None
    """From the data root to the data; None where the data is made up, as in regression."""

    image_shape: tuple[int, int, int]
    """Channels, height and width of the images; ``(1, 1, d)`` for d plain inputs."""

    classes: int
    """Classes in the whole stream; 0 in regression."""

    tasks: int
    """Tasks; those of a class-incremental stream have equally many classes."""

    model: str
    """Name of the model, for ``make_model``."""

    memory: int
    """Samples that a learner may keep."""

    passes: int
    """Gradient steps on each batch (S)."""

    normalize: Normalize | None
    """Normalisation of the images."""

    augment: CropFlip | None = None
    """Augmentation of new and replayed images."""

    batch_size: int = 10
    """New samples in a batch."""

    replay_size: int = 10
    """Replayed samples in a batch."""

    validation: float = 0.05
    """Part of each task's training data kept for validation."""

    outputs: int | None = None
    """Outputs of the model, where they do not stand for classes."""

    domains: tuple[str, ...] | None = None
    """Order of the domains, where it is not that of the data set."""

    views: Callable[[int], Sequence[View]] | None = None
    """From the seed to one view a task, where domains are views of one data set."""

    samples: int | None = None
    """Training samples of each view's task."""

    split_seed: int | None = None
    """Seed of the split in training and validation data, where it is not that of the run."""

    def __post_init__(self) -> None:
        if (self.loader is None) != (self.kind == "regression"):
            raise ConfigError(f"{self.name}: data must be loaded, but made up in regression.")

    @property
    def likelihood(self) -> Literal["categorical", "gaussian"]:
        """What learners predict: classes, or numbers with a squared error."""
        return "gaussian" if self.kind == "regression" else "categorical"

    @property
    def increments(self) -> Literal["classes", "domains"]:
        """What a learner should expect to be new in a task."""
        return "classes" if self.kind == "class-incremental" else "domains"

    @property
    def n_new(self) -> int | None:
        """Classes that are new in each task; None where none are."""
        return self.classes // self.tasks if self.kind == "class-incremental" else None

    def learner_settings(self) -> dict[str, Any]:
        """What it fixes for every learner, under the names of the learners' settings."""
        settings: dict[str, Any] = {
            "memory": self.memory,
            "replay_batch": self.replay_size,
            "passes": self.passes,
            "normalize": self.normalize,
            "augment": self.augment,
        }
        if self.likelihood == "gaussian":
            settings |= {"likelihood": self.likelihood, "memory_kind": "reservoir"}
        return settings

    def model_settings(self) -> dict[str, Any]:
        """Its model, under the names of the arguments of ``make_model``.

        It has room for all classes. A smaller one would grow, but on a GPU all steps would be
        recorded anew each time.
        """
        room = max(16, 1 << (self.classes - 1).bit_length())
        outputs = room if self.outputs is None else self.outputs
        return {"name": self.model, "image_shape": self.image_shape, "classes": outputs}


def stream_over(
    arrays: Arrays, benchmark: Benchmark, *, seed: int = 0, iid: bool = False, blurry: float = 0.0
) -> IndexedStream:
    """The stream that a benchmark makes of data.

    Args:
        arrays: The data, such as ``benchmark.loader`` gives.
        benchmark: How to make a stream of it.
        seed: Decides class order, validation data and the order of samples.
        iid: All data in one task.
        blurry: Part of each task's samples that change places with other tasks'.
    """
    common: dict[str, Any] = {
        "batch_size": benchmark.batch_size,
        "validation": benchmark.validation,
        "seed": seed,
        "iid": iid,
        "blurry": blurry,
    }
    if benchmark.kind == "class-incremental":
        return ClassIncremental(arrays, tasks=benchmark.tasks, **common)
    if benchmark.views is not None:
        tasks = in_views(arrays, benchmark.views(seed), samples=benchmark.samples, seed=seed)
        return ArrayStream(tasks, split_seed=benchmark.split_seed, **common)
    return DomainIncremental(
        arrays, order=benchmark.domains, split_seed=benchmark.split_seed, **common
    )
