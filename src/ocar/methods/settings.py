"""Settings that every learner has, whatever its method."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.config import require, require_options, require_range
from ocar.errors import ConfigError, MissingSettingError
from ocar.memory import MEMORIES, Memory
from ocar.methods.context import Context
from ocar.methods.objective import Objective
from ocar.methods.student_t import ResidualScale
from ocar.methods.transform import TransformSettings
from ocar.models.head import GrowingHead
from ocar.structure import Mirror

Normalizer = Callable[[Tensor], Tensor]
Augmenter = Callable[[Tensor, torch.Generator], Tensor]
Prediction = Literal["plain", "average", "slow", "both"]


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """Settings that every learner has."""

    lr: float | None = None
    """Learning rate α. Without one, a gradient transform such as OCAR's chooses it, see
    :mod:`ocar.methods.rate`; plain SGD needs one."""

    memory: int | Memory = 2000
    """Samples in the memory; or, from Python, a memory such as ``ReservoirMemory(500)``."""

    memory_kind: str = "class-balanced"
    """Which samples stay: equal shares for all classes seen (``"class-balanced"``), a uniform
    sample of the stream (``"reservoir"``), the last ones (``"window"``), a sample that forgets
    by age (``"exponential"``), or the name of a registered policy."""

    replay_batch: int = 10
    """Replayed samples a gradient step."""

    replay: Literal["fresh", "kept", "disjoint"] = "fresh"
    """Draw a new replay batch for each pass over a stream batch, keep one for all passes, or draw
    so that no sample is replayed twice, as long as the memory has enough."""

    partial_replay: bool = True
    """Whether to replay fewer samples while the memory holds less than a replay batch."""

    passes: int = 3
    """Gradient steps a stream batch (S)."""

    likelihood: Literal["categorical", "gaussian", "student-t"] = "categorical"
    """Classification, or regression: with a squared error (``"gaussian"``), or with a loss that
    outliers influence less (``"student-t"``), see :mod:`ocar.methods.student_t`."""

    degrees_of_freedom: float = 5.0
    """ν of a Student-t likelihood. Fewer mean heavier tails; with many it is Gaussian."""

    classes: tuple[int, ...] = ()
    """Labels that have units from the start; other labels get a unit when they appear. Give all
    labels of a benchmark for a fixed head."""

    head: str | None = None
    """Name of the output layer; by default the last linear layer of the model."""

    prediction: Prediction = "plain"
    """Predict with the weights that learn (``"plain"``), with the slow weights (``"slow"``), or
    with the mean of both models' probabilities (``"both"``); ``"average"`` is ``"slow"`` with a
    constant ``average_rate`` after every gradient step and without statistics of its own."""

    average_rate: float = 0.0028
    """Weight of the newest weights in the moving average of ``prediction="average"``."""

    slow_rate: float = 0.008
    """Weight of the newest weights in the slow weights, once the warm-up is over."""

    slow_warmup: float = 20.0
    """c: the slow weights move by c / (b + c) as long as this is more than ``slow_rate``, after b
    stream batches; 0 for a constant rate."""

    slow_every: Literal["batch", "step"] = "batch"
    """Whether the slow weights move after each stream batch or after each gradient step."""

    slow_statistics: Literal["own", "shared"] = "own"
    """Whether the slow weights have running statistics of BatchNorm that follow too, or use those
    of the model."""

    closed_form_head: bool | None = False
    """Predict with a head that is solved for on the memory when a prediction is asked, in place of
    the learned head; the slow weights keep theirs. See :mod:`ocar.closed_form`. None for where it
    is possible: not in a regression, for example."""

    mirror: Mirror = "instead"
    """Mirror images where both predict and ``augment`` mirrors: the slow weights predict the mirror
    image ``"instead"`` of the image, at no cost; both models predict both (``"too"``), at twice the
    cost; or ``"no"``."""

    distillation: float = 0.0
    """Weight of the divergence from the predictions of the slow weights in the loss; 0 for none."""

    distill_on: Literal["all", "replayed"] = "all"
    """Distil all samples of a gradient step, or the replayed ones."""

    distill_temperature: float = 1.0
    """T: divides the logits of both models in the distillation."""

    distill_curvature: bool = False
    """Whether the distillation counts in OCAR's curvature, see :mod:`ocar.methods.distillation`."""

    normalize: Normalizer | None = None
    """Applied to every input of the model; without it uint8 is scaled to [0, 1]. Samples of several
    parts are given to it, and returned by it, as the tuple or dictionary."""

    standardize: bool | None = None
    """Whether to divide inputs and regression targets by their running standard deviation, after
    their running mean was subtracted. By default targets, floating-point inputs if there is no
    ``normalize`` and no embedding in the model, and features of a ``LatentReplay``; True also
    others. Predictions are in the units of the targets."""

    augment: Augmenter | None = None
    """Applied to raw samples in each pass when learning; of several parts as in ``normalize``.
    With a ``LatentReplay`` once, before the backbone."""

    seed: int = 0
    """Seed of all random numbers of the learner."""

    def __post_init__(self) -> None:
        require_options(self)
        allowed = "distinct labels of at least 0, such as range(10)"
        try:
            object.__setattr__(self, "classes", tuple(map(operator.index, self.classes)))
        except TypeError:
            require("classes", self.classes, False, allowed)
        none = self.lr is None and type(self).lr is None
        valid = none or (self.lr is not None and 0 < self.lr < float("inf"))
        require("lr", self.lr, valid, "larger than 0")
        require_range(self, "at least 0", "replay_batch")
        require_range(self, "at least 1", "passes")
        require_range(self, "in (0, 1]", "average_rate", "slow_rate")
        require_range(self, "at least 0", "slow_warmup", "distillation")
        require_range(self, "larger than 0", "distill_temperature", "degrees_of_freedom")
        if isinstance(self.memory, Memory):
            object.__setattr__(self, "memory_kind", MEMORIES.name_of(type(self.memory)) or "")
        else:
            require("memory", self.memory, self.memory >= 1, "at least 1, or a memory")
            MEMORIES.find(self.memory_kind)
        fits = self.normalize is None or not self.standardize
        require("standardize", self.standardize, fits, "None or False if normalize is given")
        distinct = len(set(self.classes)) == len(self.classes) and min(self.classes, default=0) >= 0
        require("classes", self.classes, distinct, allowed)
        fits = self.likelihood == "categorical" or self.policy.float_targets
        kinds = "'reservoir', 'window' or 'exponential' for a regression"
        require("memory_kind", self.memory_kind, fits, kinds)
        fits = self.likelihood == "categorical" or not self.no_regression
        require("likelihood", self.likelihood, fits, f"'categorical': {self.no_regression}")
        fits = not self.distillation or not self.no_distillation
        require("distillation", self.distillation, fits, f"0: {self.no_distillation}")

    no_regression: ClassVar[str] = ""
    """Why the method has no regression; empty if it has."""

    no_distillation: ClassVar[str] = ""
    """Why nothing can be distilled; empty if it can."""

    needs_numbers: ClassVar[str] = ""
    """Why samples must be one tensor of uint8 or floating point; empty if they need not be."""

    one_device: ClassVar[str] = ""
    """Why the method works on one device only; empty if ranks can share it."""

    extras: ClassVar[tuple[str, ...]] = ()
    """Extra columns of the memory; the objective's ``extras`` computes them."""

    remembers_first: ClassVar[bool] = False
    """Whether a batch enters the memory before it is learned, so that it can be replayed at once.
    """

    trains_when_asked: ClassVar[bool] = False
    """Whether it trains for each prediction; a run then evaluates it after each task only."""

    @property
    def given_lr(self) -> float:
        """The learning rate, for what cannot do without one."""
        if self.lr is None:
            raise MissingSettingError(
                f"{type(self).__name__} needs a value for 'lr', the learning rate, such as "
                "lr=0.05. Only OCAR chooses its own.",
                ("lr",),
            )
        return self.lr

    @property
    def has_slow(self) -> bool:
        """Whether there are slow weights."""
        return self.prediction != "plain" or self.distillation > 0

    @property
    def mirrors(self) -> Mirror:
        """Which models see mirror images where both predict."""
        return self.mirror if getattr(self.augment, "flip", False) else "no"

    @property
    def slow_at_steps(self) -> bool:
        """Whether the slow weights move after each gradient step."""
        return self.prediction == "average" or self.slow_every == "step"

    @property
    def slow_shares(self) -> bool:
        """Whether the slow weights use the model's own statistics."""
        return self.prediction == "average" or self.slow_statistics == "shared"

    def slow_rate_at(self, batch: int) -> float:
        """ρ: how far the slow weights go after a number of earlier stream batches."""
        if self.prediction == "average":
            return self.average_rate
        early = self.slow_warmup / (batch + self.slow_warmup) if self.slow_warmup else 0.0
        return max(self.slow_rate, early)

    @property
    def curvature_scale(self) -> tuple[float, float]:
        """Curvature of the loss of a new and of a replayed sample, in units of its Fisher."""
        more = 1 + self.distillation * self.distill_curvature
        return (more if self.distill_on == "all" else 1.0), more

    @property
    def draws(self) -> tuple[int, ...]:
        """Sizes of the independent draws from memory that a gradient step needs."""
        return (self.replay_batch,)

    @property
    def share_of_new(self) -> float | None:
        """Share of the new samples in a mean over the joint batch; None to count all alike."""
        return None

    @property
    def policy(self) -> type[Memory]:
        """The kind of memory."""
        if isinstance(self.memory, Memory):
            return type(self.memory)
        return MEMORIES.find(self.memory_kind)

    def make_memory(self, device: torch.device) -> Memory:
        """The memory, empty, with its samples on a device."""
        given: dict[str, Any] = {"extras": self.extras, "seed": self.seed, "device": device}
        if isinstance(self.memory, Memory):
            return self.memory.bind(**given)
        return self.policy(self.memory, **given)

    def make_head(self, model: nn.Module, generator: torch.Generator) -> GrowingHead | None:
        """The output layer of a model, and the classes of its units; None in regression."""
        if self.likelihood != "categorical":
            return None
        return GrowingHead(model, name=self.head, classes=self.classes, generator=generator)

    def make_residuals(self, device: torch.device) -> ResidualScale | None:
        """The scale of the residuals of a Student-t likelihood; None for another."""
        student = self.likelihood == "student-t"
        return ResidualScale(self.degrees_of_freedom, device) if student else None

    def refuses(self, transform: TransformSettings | None) -> str | None:
        """Why the method cannot be used with a gradient transform; None if it can."""
        return None

    def check_transform(self, transform: TransformSettings | None) -> None:
        """Raise a ``ConfigError`` if it cannot be used with a gradient transform."""
        if (reason := self.refuses(transform)) is not None:
            raise ConfigError(reason)
        if transform is None or not transform.chooses_lr:
            self.given_lr  # noqa: B018 (it raises)

    def make_objective(self, context: Context) -> Objective:
        """The loss of the method."""
        raise TypeError(f"{type(self).__name__} is not a method: use one such as ERSettings.")

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
        """The optimizer; None for plain SGD."""
        return None


def check_shared(
    ranks: accel.Ranks,
    settings: LearnerSettings,
    transform: TransformSettings | None,
    guard: object,
) -> None:
    """Raise a ``ConfigError`` if ranks cannot share a method, or have different settings."""
    shown = re.sub(r" at 0x[0-9a-f]+", "", f"{settings!r}, {transform!r}, {guard!r}")
    ranks.require_equal("settings", f"{shown}, {ranks.about}")
    for part in (settings, transform):
        reason = "" if part is None else part.one_device
        if reason:
            raise ConfigError(
                f"{type(part).__name__} cannot be used with {ranks.size} ranks: {reason}. Use one "
                "device, or a method such as OCAR, ER, ER-ACE or DER++."
            )
