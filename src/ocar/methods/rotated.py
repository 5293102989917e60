"""Rotated views and stretches of the stream, for OCM and OnPro.

Both methods contrast images that are rotated in sixteen ways (``contrastive.rotations``). Each
rotation of a class counts as a separate class. The two views are plain and augmented. The
augmentation works on normalised pixels, as in the code of both methods. With u the projections and
f the features of all views, rows of unit length, the similarity is

    s = u uᵀ + u (f restricted to as many neighbouring columns as u has, drawn anew each time)ᵀ.

Both treat the first stretch of the stream (in their papers: the first task) differently from later
ones. Its end is found by :class:`~ocar.methods.stretches.Stretches`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.augment import Compose, Grey, HorizontalFlip, ResizedCrop
from ocar.config import require, require_range
from ocar.methods.context import Context
from ocar.methods.contrastive import (
    Projecting,
    make_linear,
    mean_over_same,
    mean_over_views,
    pair_losses,
    rotations,
    unit_rows,
)
from ocar.methods.objective import Forward
from ocar.methods.settings import LearnerSettings
from ocar.methods.stretches import Kind, Stretches
from ocar.methods.transform import TransformSettings
from ocar.rng import make_generator
from ocar.state import with_prefix, without_prefix

AUGMENT = Compose(
    (
        HorizontalFlip(),
        Grey(probability=0.25),
        ResizedCrop(scale=(0.3, 1.0), half_pixels=True),
    )
)
"""The augmentation of the second view of images."""


@dataclass(frozen=True, kw_only=True)
class RotatedSettings(LearnerSettings):
    """Settings that OCM and OnPro share.

    Samples that are not images are neither rotated nor augmented.
    """

    one_device = "it compares the features of all samples"

    name: ClassVar[str]
    """Name of the method, for messages."""

    no_regression = "a regression has no classes"
    no_distillation = "most passes of OCM and OnPro are over rotated views, for their features"
    needs_numbers = "it compares views of images"

    lr: float = 5e-4
    """Learning rate α."""

    memory_kind: str = "reservoir"
    """Which samples stay: a uniform sample of the stream (``"reservoir"``), equal shares for all
    classes seen (``"class-balanced"``), or the name of a registered policy."""

    passes: int = 1
    """Gradient steps a stream batch (S)."""

    replay_batch: int = 64
    """Largest number of replayed samples a gradient step."""

    replay_per_class: int = 7
    """Replayed samples for each class seen, up to ``replay_batch`` in all."""

    temperature: float = 0.07
    """T of the contrastive losses."""

    projection: int = 128
    """Length of the projections, at most the length of the features."""

    stretches: Kind = "labels"
    """Where a stretch of the stream ends: at task boundaries, for which ``boundary()`` must be
    called (the published code), at a new label after ``quiet`` batches without one, or every
    ``stretch`` batches."""

    quiet: int = 3
    """Batches without a new label before a new label begins a stretch."""

    stretch: int = 100
    """Batches of a stretch, with ``stretches="batches"``."""

    optimizer: Literal["adam", "sgd"] = "adam"
    """The optimizer: Adam (the published code), or plain SGD."""

    betas: tuple[float, float] = (0.9, 0.99)
    """Adam's decay rates of the mean gradient and of the mean square."""

    weight_decay: float = 1e-4
    """Adam's weight decay: the gradient gets this times the weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "betas", tuple(self.betas))
        valid = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require("betas", self.betas, valid, "two numbers in [0, 1)")
        require_range(self, "at least 0", "weight_decay")
        require_range(self, "larger than 0", "temperature")
        require_range(self, "at least 1", "replay_per_class", "projection", "quiet", "stretch")

    def refuses(self, transform: TransformSettings | None) -> str | None:
        """Every transform, unless the optimizer is SGD."""
        if transform is None or self.optimizer == "sgd":
            return None
        return (
            f"{self.name} steps with Adam, which scales each entry of the gradient anew, so that "
            f"what {type(transform).__name__} makes of it would be lost. Use optimizer='sgd'."
        )

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
        """Adam, unless plain SGD is wanted."""
        if self.optimizer == "sgd":
            return None
        return accel.adam(parameters, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay)


R = TypeVar("R", bound=RotatedSettings)


class Rotated(Projecting[R]):
    """The base of the two objectives."""

    projection: nn.Linear

    def __init__(self, settings: R, context: Context) -> None:
        super().__init__(settings, context, name=settings.name)
        self.wants_boundaries = settings.stretches == "boundary"
        self.stretches = Stretches(
            settings.stretches, quiet=settings.quiet, length=settings.stretch
        )
        size = self.head.layer.in_features
        self.projection = make_linear(
            size,
            min(settings.projection, size),
            generator=make_generator(settings.seed, "projection"),
            like=self.head.layer.weight.detach(),
        )

    def boundary(self) -> None:
        """A task has ended."""
        self.stretches.boundary()

    def few(self, size: int) -> int:
        """Samples to replay: ``replay_per_class`` for each class seen, at most ``size``."""
        return min(size, self.settings.replay_per_class * len(self.stretches.units))

    # The parts of the losses

    @torch.no_grad()
    def augmented(self, x: Tensor) -> Tensor:
        """Augmented inputs of the model, ``(n, ...)``, another draw each time."""
        return AUGMENT.augment(x, self.generator) if x.dim() == 4 else x

    @torch.no_grad()
    def views(self, x: Tensor) -> Tensor:
        """All rotations of the inputs, plain and then augmented, ``(2 · ways · n, ...)``."""
        turned = rotations(x)
        return torch.cat([turned, self.augmented(turned)])

    def project(self, x: Tensor, forward: Forward) -> tuple[Tensor, Tensor]:
        """Projections ``(n, p)`` and features ``(n, d)`` of inputs, rows of unit length."""
        features, _ = self.context.features(accel.many_images(x), forward)
        return unit_rows(self.projection(features)), unit_rows(features)

    def similarity(self, projections: Tensor, features: Tensor) -> Tensor:
        """s, ``(n, n)``, from rows of unit length."""
        width, length = projections.shape[1], features.shape[1]
        columns = torch.arange(width, device=features.device)
        if length > width:
            start = torch.randint(
                length - width, (1,), device=features.device, generator=self.generator
            )
            columns = columns + start
        return projections @ (projections + features.index_select(1, columns)).T

    def contrast_new(self, projections: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        """The loss of new samples: over views of a sample, plus twice over views of a class.

        Projections ``(2 · ways · n, p)`` and features ``(2 · ways · n, d)`` are of all views, the
        labels ``(n,)`` of the samples.
        """
        similarity = self.similarity(projections, features)
        losses = pair_losses(similarity, temperature=self.settings.temperature, itself=False)
        same = same_class(labels, views=2, rows=len(losses))
        return mean_over_views(losses) + 2 * mean_over_same(losses, same)

    def contrast_old(
        self, projections: Tensor, features: Tensor, labels: Tensor, *, scale: float = 1.0
    ) -> Tensor:
        """The loss of replayed samples: over views of a class; arguments as for new samples."""
        similarity = scale * self.similarity(projections, features)
        losses = pair_losses(similarity, temperature=self.settings.temperature, itself=True)
        return mean_over_same(losses, same_class(labels, views=2, rows=len(losses)))

    # Saving

    def state_dict(self) -> dict[str, Tensor]:
        """The projection, the generator and the stretches."""
        return super().state_dict() | with_prefix("stretches", self.stretches.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        super().load_state_dict(state)
        self.stretches.load_state_dict(without_prefix("stretches", state))


def same_class(labels: Tensor, *, views: int, rows: int) -> Tensor:
    """Which pairs of rows belong to the same class and the same rotation, ``(rows, rows)`` of bool.

    The rows are the ``views`` of all rotations of samples with labels ``(n,)``.
    """
    ways = rows // (views * len(labels))
    way = torch.arange(ways, device=labels.device)[:, None].expand(ways, len(labels))
    way, label = way.reshape(-1).repeat(views), labels.repeat(views * ways)
    return (label[:, None] == label) & (way[:, None] == way)
