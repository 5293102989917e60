"""Experience replay: SGD on new and replayed samples together.

Chaudhry et al., "On tiny episodic memories in continual learning" (2019). The
step minimises the mean cross-entropy of the joint batch,

    w ← w − α ∇ 1/(n+m) (Σ_new CE + Σ_replay CE),

with a replay batch drawn uniformly from the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from torch import nn

from ocar.guard import Guard
from ocar.learner import Learner
from ocar.methods.context import Context
from ocar.methods.objective import CrossEntropy, Objective, SquaredError
from ocar.methods.settings import Augmenter, LearnerSettings, Normalizer


@dataclass(frozen=True, kw_only=True)
class ERSettings(LearnerSettings):
    """Settings of experience replay: no more than every learner has."""

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy, or the squared error in regression."""
        return CrossEntropy() if self.likelihood == "categorical" else SquaredError()


def ER(
    model: nn.Module,
    *,
    lr: float,
    memory: int = 2000,
    memory_kind: Literal["class-balanced", "reservoir"] = "class-balanced",
    replay_batch: int = 10,
    replay: Literal["fresh", "kept", "disjoint"] = "fresh",
    partial_replay: bool = True,
    passes: int = 3,
    likelihood: Literal["categorical", "gaussian"] = "categorical",
    classes: Sequence[int] = (),
    head: str | None = None,
    prediction: Literal["plain", "average"] = "plain",
    average_rate: float = 0.0028,
    normalize: Normalizer | None = None,
    augment: Augmenter | None = None,
    seed: int = 0,
    guard: Guard | None = Guard(),  # noqa: B008 (it is frozen)
) -> Learner:
    """A learner that replays, with plain SGD.

    The arguments are those of :class:`~ocar.methods.settings.LearnerSettings`, and the ``guard``
    of :class:`~ocar.learner.Learner`.
    """
    given = locals()
    settings = ERSettings(**{f.name: given[f.name] for f in fields(ERSettings)})
    return Learner(model, settings, guard=guard)
