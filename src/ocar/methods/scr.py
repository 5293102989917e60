"""SCR: supervised contrastive replay, and the nearest class mean.

Mai et al., "Supervised Contrastive Replay: Revisiting the Nearest Class Mean
Classifier in Online Class-Incremental Continual Learning" (CVPR Workshops 2021).
Of b new and replayed samples there are two views, plain and strongly augmented.
With z the projections of the 2b views by a small network on top of the features,

    L = 1/2b Σ_i −1/|P(i)| Σ_{p ∈ P(i)} log( exp(z_i·z_p/T) / Σ_{a ≠ i} exp(z_i·z_a/T) ),

P(i) being the other views with the label of view i. The head of the model has no
part in it. A sample belongs to the class m whose mean is nearest to its features,

    argmin_m ‖f/‖f‖ − μ_m‖,   μ_m the mean of f/‖f‖ over class m in the memory.

The defaults are the paper's. The code of the survey with which the published
tables were made differs, and each difference is an option: it augments
normalised pixels, so that the colour jitter cuts all that are negative to 0
(``views``), gives unit length to the features and not to the projections
(``unit_length``), multiplies the loss with T/0.07 (``base_temperature``), and
averages the class means over time (``means``). Its evaluations while it learns use
the means of one batch before; ours use those of the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel import MASKED
from ocar.augment import ColorJitter, Compose, Grey, HorizontalFlip, ResizedCrop
from ocar.config import require, require_one_of
from ocar.errors import CheckpointError
from ocar.methods.context import Context
from ocar.methods.contrastive import make_linear, supervised_contrastive
from ocar.methods.objective import Forward, Objective, Outcome, Step
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import TransformSettings
from ocar.rng import make_generator
from ocar.state import check_names, with_prefix, without_prefix

CHUNK = 1000
"""Samples of the memory that go through the model at once."""


@dataclass(frozen=True, kw_only=True)
class SCRSettings(LearnerSettings):
    """Settings of supervised contrastive replay.

    ``augment`` makes the first view; the published tables have none there. Samples that are no
    images have no strong augmentation: their second view is the first.
    """

    replay_batch: int = 118
    """Replayed samples a gradient step."""

    temperature: float = 0.07
    """T of the contrastive loss."""

    base_temperature: float | None = None
    """Multiply the loss with T over this number, 0.07 in the survey; None for no factor."""

    projection: int = 128
    """Length of the projections."""

    unit_length: Literal["projections", "features"] = "projections"
    """What is given unit length: the projections (the paper), or the features that they are made
    of (the survey's code)."""

    views: Literal["unit", "survey"] = "unit"
    """Augment pixels in 0..1 and then normalise, or augment normalised pixels, as in the survey."""

    means: Literal["recomputed", "averaged"] = "recomputed"
    """Class means of the memory as it is, or their moving average (the survey's code)."""

    means_rate: float = 0.5
    """Weight of the newest in the moving average of the class means."""

    crop_scale: float = 0.2
    """Smallest area of the random window of the second view, as part of the image's."""

    jitter: float = 0.4
    """Largest change of brightness, contrast and saturation; that of hue is a quarter of it."""

    jitter_probability: float = 0.8
    """Of the colours of an image to be changed."""

    grey: float = 0.2
    """Probability of an image to lose its colours."""

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = 0 < self.temperature < float("inf")
        require("temperature", self.temperature, valid, "larger than 0")
        valid = self.base_temperature is None or self.base_temperature > 0
        require("base_temperature", self.base_temperature, valid, "larger than 0, or None")
        require("projection", self.projection, self.projection >= 1, "at least 1")
        require_one_of("unit_length", self.unit_length, ("projections", "features"))
        require_one_of("views", self.views, ("unit", "survey"))
        require_one_of("means", self.means, ("recomputed", "averaged"))
        require("means_rate", self.means_rate, 0 < self.means_rate <= 1, "in (0, 1]")
        fits = self.likelihood == "categorical"
        require("likelihood", self.likelihood, fits, "'categorical': a regression has no classes")
        fits = self.prediction == "plain"
        require("prediction", self.prediction, fits, "'plain': class means follow the weights")
        self.strong  # noqa: B018 (its parts check themselves)

    @property
    def strong(self) -> Compose:
        """What makes the second view."""
        return Compose(
            (
                ResizedCrop(scale=(self.crop_scale, 1.0), whole_side=False, align_corners=True),
                HorizontalFlip(),
                ColorJitter(
                    brightness=self.jitter,
                    contrast=self.jitter,
                    saturation=self.jitter,
                    hue=self.jitter / 4,
                    probability=self.jitter_probability,
                ),
                Grey(probability=self.grey),
            )
        )

    def refuses(self, transform: TransformSettings | None) -> str | None:
        """Every transform that needs a predictive distribution."""
        if transform is None or not transform.needs_predictions:
            return None
        return (
            f"SCR has no predictive distribution, which {type(transform).__name__} takes its "
            "Fisher from: it compares features and trains no head. Use a method with "
            "cross-entropy, such as 'er' or 'er-ace'."
        )

    def make_objective(self, context: Context) -> Objective:
        """The contrastive loss with its class means."""
        return ContrastiveReplay(self, context)


class ContrastiveReplay(Objective):
    """The supervised contrastive loss of two views; predicts by the nearest class mean.

    Args:
        settings: The settings.
        context: The parts of the learner.
    """

    joint = False
    predicts = True

    def __init__(self, settings: SCRSettings, context: Context) -> None:
        assert context.head is not None
        self.settings = settings
        self.context = context
        self.head = context.head
        self.strong = settings.strong
        self.generator = make_generator(settings.seed, "scr", context.device)
        size, weight = self.head.layer.in_features, self.head.layer.weight.detach()
        drawn = make_generator(settings.seed, "projection")
        self.projection = nn.Sequential(
            make_linear(size, size, generator=drawn, like=weight),
            nn.ReLU(),
            make_linear(size, settings.projection, generator=drawn, like=weight),
        )
        self._means = weight.new_zeros(0, size)
        self._known = torch.zeros(0, dtype=torch.bool, device=context.device)
        self._made_of: int | None = None  # samples that the memory had been offered

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """That of the second view."""
        return (self.generator,)

    def parameters(self) -> Sequence[nn.Parameter]:
        """Those of the projection."""
        return tuple(self.projection.parameters())

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        features, _ = self.context.features(torch.cat([step.x, self.second_view(step)]), forward)
        z = self.project(features)
        loss = supervised_contrastive(z, step.y.repeat(2), temperature=self.settings.temperature)
        if self.settings.base_temperature is not None:
            loss = loss * (self.settings.temperature / self.settings.base_temperature)
        return Outcome(loss=loss, outputs=None)

    @torch.no_grad()
    def second_view(self, step: Step) -> Tensor:
        """The augmented inputs of the model, ``(n, ...)``."""
        if step.raw.dim() != 4:
            return step.x
        if self.settings.views == "survey":
            return self.strong.augment(self.context.normalize(step.raw), self.generator)
        return self.context.normalize(self.strong(step.raw, self.generator))

    def project(self, features: Tensor) -> Tensor:
        """What is compared, ``(n, projection)``, for features ``(n, d)``."""
        if self.settings.unit_length == "features":
            z: Tensor = self.projection(functional.normalize(features))
            return z
        return functional.normalize(self.projection(features))

    # Nearest class mean

    def learned(self) -> None:
        """The weights and the memory are others now: so are the class means."""
        self._made_of = None
        if self.settings.means == "averaged":
            self._renew()

    def predict(self, x: Tensor) -> Tensor:
        """Minus the distance of the features to each class mean, ``(n, classes)``."""
        return self.score(self.context.features(x)[0])

    def score(self, features: Tensor) -> Tensor:
        """Minus the distance of features to each class mean."""
        if self.settings.means == "recomputed" and self._made_of != self.context.memory.seen:
            self._renew()
        self._fit_means()
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(functional.normalize(features), self._means, compute_mode=exact)
        return torch.where(self._known, -distances, MASKED)

    @torch.no_grad()
    def _renew(self) -> None:
        """Take the class means of the memory, all of it or into the average."""
        self._fit_means()
        self._made_of = self.context.memory.seen
        means, there = self._means_of_memory()
        if self.settings.means == "averaged":
            merged = torch.lerp(self._means, means, self.settings.means_rate)
            means = torch.where((there & self._known)[:, None], merged, means)
            means = torch.where(there[:, None], means, self._means)
            there = there | self._known
        self._means, self._known = means, there

    def _means_of_memory(self) -> tuple[Tensor, Tensor]:
        """Class means ``(units, d)`` of unit length, and which units have one."""
        total, counts = torch.zeros_like(self._means), self._means.new_zeros(len(self._means))
        with self.context.evaluating():
            for slots in self.context.memory.slots.split(CHUNK):
                batch = self.context.memory.gather(slots)
                features, _ = self.context.features(self.context.normalize(batch.x))
                members = functional.one_hot(batch.y, len(total)).to(total.dtype)
                total += members.T @ functional.normalize(features)
                counts += members.sum(0)
        return functional.normalize(total / counts.clamp_min(1)[:, None]), counts > 0

    def _fit_means(self) -> None:
        """Give the means the units that the head has gained."""
        missing = self.head.capacity - len(self._means)
        if missing > 0:
            self._means = functional.pad(self._means, (0, 0, 0, missing))
            self._known = functional.pad(self._known, (0, missing))

    # Saving

    def state_dict(self) -> dict[str, Tensor]:
        """The projection, the averaged means, the generator."""
        state = with_prefix("projection", self.projection.state_dict())
        state["generator"] = self.generator.get_state()
        if self.settings.means == "averaged":
            self._fit_means()
            state |= {"means": self._means, "known": self._known}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            CheckpointError: The state is of another model.
        """
        projection = without_prefix("projection", state)
        check_names("projection", projection, self.projection.state_dict())
        self.projection.load_state_dict(projection)
        self.generator.set_state(state["generator"])
        self._made_of = None
        if self.settings.means == "averaged":
            self._fit_means()
            if state["means"].shape != self._means.shape:
                raise CheckpointError(
                    f"The checkpoint is of another model: class means of shape "
                    f"{tuple(state['means'].shape)}, here {tuple(self._means.shape)}."
                )
            self._means = state["means"].to(self._means, copy=True)
            self._known = state["known"].to(self._known, copy=True)
