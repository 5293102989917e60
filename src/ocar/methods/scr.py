"""SCR: supervised contrastive replay, and the nearest class mean.

Mai et al., "Supervised Contrastive Replay: Revisiting the Nearest Class Mean
Classifier in Online Class-Incremental Continual Learning" (CVPR Workshops 2021).
Each of b new and replayed samples has two views, plain and strongly augmented. A
small network on top of the features projects the 2b views to z:

    L = 1/2b Σ_i −1/|P(i)| Σ_{p ∈ P(i)} log( exp(z_i·z_p/T) / Σ_{a ≠ i} exp(z_i·z_a/T) ),

where P(i) are the other views with the label of view i. The head of the model is not
used. The prediction is the class m whose mean is nearest to the features f,

    argmin_m ‖f/‖f‖ − μ_m‖,   μ_m the mean of f/‖f‖ over class m in the memory.

The defaults are the paper's. The survey's code, which made the published tables,
differs. It augments normalised pixels, so the colour jitter clips negative pixels to
0 (``views``). It normalises the features instead of the projections
(``unit_length``). It multiplies the loss by T/0.07 (``base_temperature``). It
averages the class means over time (``means``). Each of these is an option. While it
learns, the survey's code evaluates with the class means of the previous batch; here
evaluation uses the class means of the last batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel import MASKED
from ocar.augment import ColorJitter, Compose, Grey, HorizontalFlip, ResizedCrop
from ocar.config import require, require_range
from ocar.errors import CheckpointError
from ocar.methods.context import Context
from ocar.methods.contrastive import Projecting, make_linear, supervised_contrastive
from ocar.methods.objective import Forward, Objective, Outcome, Step
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import TransformSettings
from ocar.rng import make_generator
from ocar.structure import Inputs, one_tensor

CHUNK = 1000
"""Samples of the memory that go through the model at once."""


@dataclass(frozen=True, kw_only=True)
class SCRSettings(LearnerSettings):
    """Settings of supervised contrastive replay.

    ``augment`` makes the first view; the published tables use none there. Samples that are not
    images get no strong augmentation: their second view equals the first.
    """

    no_regression = "a regression has no classes"
    no_distillation = "SCR trains no head whose predictions could be distilled"
    needs_numbers = "SCR compares views of images"
    one_device = "SCR compares the features of all samples"

    replay_batch: int = 118
    """Replayed samples a gradient step."""

    temperature: float = 0.07
    """T of the contrastive loss."""

    base_temperature: float | None = None
    """Multiply the loss by T over this number, 0.07 in the survey; None for no factor."""

    projection: int = 128
    """Length of the projections."""

    unit_length: Literal["projections", "features"] = "projections"
    """What is normalised to unit length: the projections (the paper), or the features before them
    (the survey's code)."""

    views: Literal["unit", "survey"] = "unit"
    """Augment pixels in 0..1 and then normalise, or augment normalised pixels, as in the survey."""

    means: Literal["recomputed", "averaged"] = "recomputed"
    """Class means of the present memory, or their moving average (the survey's code)."""

    means_rate: float = 0.5
    """Weight of the newest class means in their moving average."""

    crop_scale: float = 0.2
    """Smallest area of the second view's random crop, as a fraction of the image."""

    jitter: float = 0.4
    """Largest change of brightness, contrast and saturation; hue changes by a quarter of it."""

    jitter_probability: float = 0.8
    """Probability of changing the colours of an image."""

    grey: float = 0.2
    """Probability of making an image grey."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "larger than 0", "temperature")
        require_range(self, "at least 1", "projection")
        require_range(self, "in (0, 1]", "means_rate")
        require_range(self, "larger than 0", "base_temperature", none="or None")
        fits = self.prediction == "plain"
        require("prediction", self.prediction, fits, "'plain': class means follow the weights")
        self.strong  # noqa: B018 (its parts check themselves)

    @property
    def strong(self) -> Compose:
        """The augmentation of the second view."""
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
        """The contrastive loss and the class means."""
        return ContrastiveReplay(self, context)


class ContrastiveReplay(Projecting[SCRSettings]):
    """The supervised contrastive loss of two views; predicts by the nearest class mean."""

    predicts = True
    unit_features = True

    def __init__(self, settings: SCRSettings, context: Context) -> None:
        super().__init__(settings, context, name="scr")
        self.strong = settings.strong
        size, weight = self.head.layer.in_features, self.head.layer.weight.detach()
        drawn = make_generator(settings.seed, "projection")
        self.projection = nn.Sequential(
            make_linear(size, size, generator=drawn, like=weight),
            nn.ReLU(),
            make_linear(size, settings.projection, generator=drawn, like=weight),
        )
        wide = torch.promote_types(weight.dtype, torch.float32)  # 16 bits have no distances
        self._means = weight.new_zeros(0, size, dtype=wide)
        self._known = torch.zeros(0, dtype=torch.bool, device=context.device)
        self._made_of: object = None  # memory and weights

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        features, _ = self.context.features(
            torch.cat([one_tensor(step.x), self.second_view(step)]), forward
        )
        z = self.project(features)
        loss = supervised_contrastive(z, step.y.repeat(2), temperature=self.settings.temperature)
        if self.settings.base_temperature is not None:
            loss = loss * (self.settings.temperature / self.settings.base_temperature)
        return Outcome(loss=loss, outputs=None)

    @torch.no_grad()
    def second_view(self, step: Step) -> Tensor:
        """The augmented inputs of the model, ``(n, ...)``."""
        raw = one_tensor(step.raw)
        if raw.dim() != 4:
            return one_tensor(step.x)
        if self.settings.views == "survey":
            return self.strong.augment(one_tensor(self.context.normalize(raw)), self.generator)
        return one_tensor(self.context.normalize(self.strong(raw, self.generator)))

    def project(self, features: Tensor) -> Tensor:
        """Projections ``(n, projection)`` of features ``(n, d)``."""
        if self.settings.unit_length == "features":
            z: Tensor = self.projection(functional.normalize(features))
            return z
        return functional.normalize(self.projection(features))

    # Nearest class mean

    def learned(self) -> None:
        """Let the next prediction renew the class means, or renew their average now."""
        self._made_of = None
        if self.settings.means == "averaged":
            self._renew()

    def predict(self, x: Inputs) -> Tensor:
        """Minus the distance of the features to each class mean, ``(n, classes)``."""
        features, _ = self.context.features(x)
        if self.settings.means == "recomputed" and self._made_of != self.context.made_of():
            self._renew()
        self._fit_means()
        features = functional.normalize(features.to(self._means.dtype))
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(features, self._means, compute_mode=exact)
        return torch.where(self._known, -distances, MASKED)

    @torch.no_grad()
    def _renew(self) -> None:
        """Renew the class means, or their moving average, from the memory."""
        self._fit_means()
        self._made_of = self.context.made_of()
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
        stored = self.context.memory.slots
        with self.context.evaluating():
            for slots in stored.split(CHUNK) if len(stored) else ():
                batch = self.context.memory.gather(slots)
                features, _ = self.context.features(self.context.normalize(batch.x))
                members = functional.one_hot(batch.y, len(total)).to(total.dtype)
                total += members.T @ functional.normalize(features.to(total.dtype))
                counts += members.sum(0)
        return functional.normalize(total / counts.clamp_min(1)[:, None]), counts > 0

    def _fit_means(self) -> None:
        """Make room for new units of the head."""
        missing = self.head.capacity - len(self._means)
        if missing > 0:
            self._means = functional.pad(self._means, (0, 0, 0, missing))
            self._known = functional.pad(self._known, (0, missing))

    # Saving

    def state_dict(self) -> dict[str, Tensor]:
        """The projection, the averaged means, the generator."""
        state = super().state_dict()
        if self.settings.means == "averaged":
            self._fit_means()
            state |= {"means": self._means, "known": self._known}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        super().load_state_dict(state)
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
