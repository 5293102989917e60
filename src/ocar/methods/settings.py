"""Settings that every learner has, whatever its method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ocar.config import require, require_one_of
from ocar.memory import MEMORIES
from ocar.methods.context import Context
from ocar.methods.objective import Objective
from ocar.methods.transform import TransformSettings

Normalizer = Callable[[Tensor], Tensor]
Augmenter = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """Settings that every learner has."""

    lr: float
    """Learning rate α."""

    memory: int = 2000
    """Samples that the memory holds."""

    memory_kind: Literal["class-balanced", "reservoir"] = "class-balanced"
    """Who stays: equal shares for all classes seen, or a uniform sample of the stream."""

    replay_batch: int = 10
    """Replayed samples a gradient step."""

    replay: Literal["fresh", "kept", "disjoint"] = "fresh"
    """Draw anew for each pass over a stream batch, keep one draw for all, or draw so that no
    sample comes twice as long as the memory has enough."""

    partial_replay: bool = True
    """Whether to replay less than was asked for as long as the memory holds no more."""

    passes: int = 3
    """Gradient steps a stream batch (S)."""

    likelihood: Literal["categorical", "gaussian"] = "categorical"
    """Classification, or regression with a squared error."""

    classes: tuple[int, ...] = ()
    """Labels that the head's first units stand for from the start; others are added as they
    appear. With all labels of a benchmark this is a fixed full head."""

    head: str | None = None
    """Name of the output layer; by default the last linear layer of the model."""

    prediction: Literal["plain", "average"] = "plain"
    """Predict with the weights themselves or with their moving average."""

    average_rate: float = 0.0028
    """Weight of the newest in the moving average of the weights."""

    normalize: Normalizer | None = None
    """Applied to every input of the model; without it uint8 is scaled to [0, 1]."""

    augment: Augmenter | None = None
    """Applied to raw samples, afresh for each pass, when learning."""

    seed: int = 0
    """Seed of all that is random in the learner."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        require("lr", self.lr, 0 < self.lr < float("inf"), "larger than 0")
        require("memory", self.memory, self.memory >= 1, "at least 1")
        require("replay_batch", self.replay_batch, self.replay_batch >= 0, "at least 0")
        require("passes", self.passes, self.passes >= 1, "at least 1")
        require("average_rate", self.average_rate, 0 < self.average_rate <= 1, "in (0, 1]")
        require_one_of("memory_kind", self.memory_kind, MEMORIES)
        require_one_of("replay", self.replay, ("fresh", "kept", "disjoint"))
        require_one_of("likelihood", self.likelihood, ("categorical", "gaussian"))
        require_one_of("prediction", self.prediction, ("plain", "average"))
        distinct = len(set(self.classes)) == len(self.classes) and min(self.classes, default=0) >= 0
        require("classes", self.classes, distinct, "distinct labels of at least 0")
        fits = self.likelihood == "categorical" or self.memory_kind == "reservoir"
        require("memory_kind", self.memory_kind, fits, "'reservoir' for a gaussian likelihood")

    extras: ClassVar[tuple[str, ...]] = ()
    """What the memory stores beside x and y; the objective's ``extras`` gives it."""

    remembers_first: ClassVar[bool] = False
    """Whether a batch enters the memory before it is learned, so that it can be replayed at once.
    """

    trains_when_asked: ClassVar[bool] = False
    """Whether it trains for a prediction, so that a run evaluates it after each task only."""

    @property
    def draws(self) -> tuple[int, ...]:
        """Sizes of the independent draws from memory that a gradient step needs."""
        return (self.replay_batch,)

    def refuses(self, transform: TransformSettings | None) -> str | None:
        """Why the method does not go with a gradient transform, or None if it does."""
        return None

    def make_objective(self, context: Context) -> Objective:
        """The loss of the method."""
        raise TypeError(f"{type(self).__name__} is no method: use one such as ERSettings.")

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
        """What takes the step; None for plain SGD."""
        return None
