"""MIR: maximally interfered retrieval.

Aljundi et al., "Online Continual Learning with Maximally Interfered Retrieval"
(NeurIPS 2019). Candidates x are drawn from the memory. A step on the new samples
alone would raise the loss of some candidates. The candidates with the largest
increase s are replayed:

    s(x) = CE(x; w − α ∇CE(new; w)) − CE(x; w).

The step minimises CE(new) + CE(the samples with the largest s), two means.

The code behind the published tables excludes candidates of the classes in the
previous stream batch, and scores with BatchNorm statistics of the candidates. Both
are options. That code draws the candidates from the other classes; here they are
drawn from all classes and the excluded ones are skipped, so that every step has the
same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ocar.config import require, require_range
from ocar.methods.context import Context
from ocar.methods.copies import VirtualStep, mark_units
from ocar.methods.objective import (
    Begun,
    ClassObjective,
    Forward,
    Objective,
    Outcome,
    Step,
    mean_loss,
    sample_losses,
)
from ocar.methods.settings import LearnerSettings


@dataclass(frozen=True, kw_only=True)
class MIRSettings(LearnerSettings):
    """Settings of MIR."""

    no_regression = "losses of classes are compared"
    one_device = "MIR tries a step by itself"

    subsample: int = 128
    """Candidates drawn from memory; ``replay_batch`` of them are replayed."""

    exclude: Literal["previous", "none"] = "previous"
    """Candidates to skip: of the classes in the previous stream batch (the code behind the
    published tables), or none."""

    scoring: Literal["train", "eval"] = "train"
    """Score with BatchNorm's statistics of the candidates, which then change the running statistics
    (the code behind the published tables), or with the running statistics."""

    virtual_lr: float | None = None
    """Learning rate of the virtual step, which is always plain SGD; by default ``lr``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        least = max(1, self.replay_batch)
        allowed = f"at least {least}, the replay batch"
        require("subsample", self.subsample, self.subsample >= least, allowed)
        require_range(self, "larger than 0", "virtual_lr", none="or None for the rate itself")

    @property
    def draws(self) -> tuple[int, ...]:
        """The candidates."""
        return (self.subsample if self.replay_batch else 0,)

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy of the new samples and of the most interfered candidates."""
        return InterferedRetrieval(self, context)


class InterferedRetrieval(ClassObjective[MIRSettings]):
    """CE(new) + CE(the candidates that a step on the new samples would hurt most)."""

    joint = False

    def __init__(self, settings: MIRSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._lr = settings.given_lr if settings.virtual_lr is None else settings.virtual_lr
        self._previous: list[int] = []
        self._excluded = torch.zeros_like(self.head.active)

    def begin(self, batch: Begun) -> Sequence[float]:
        """Mark the classes of the previous stream batch."""
        self._excluded = mark_units(self._excluded, self._previous, like=self.head.active)
        if self.settings.exclude == "previous":
            self._previous = sorted(set(batch.units))
        return ()

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step; plain cross-entropy if nothing is replayed."""
        new, y = step.new, step.y
        loss = mean_loss(forward(step.x[:new]), y[:new], step.active)
        if not step.replayed:
            return Outcome(loss=loss, outputs=None)
        increase = self.interference(forward, step, loss)
        allowed = self._excluded[y[new:]].logical_not()
        increase = torch.where(allowed, increase, -torch.inf)
        chosen = increase.topk(min(self.settings.replay_batch, step.replayed)).indices
        # If too few candidates are allowed, others fill the shape with weight 0.
        weights = allowed[chosen].to(loss.dtype)
        at = torch.cat([torch.arange(new, device=y.device), new + chosen])
        taken = replace(
            step,
            x=step.x[at],
            y=y[at],
            raw=step.raw[at],
            draws=(chosen.shape[0],),
            extras={name: extra[chosen] for name, extra in step.extras.items()},
        )
        losses = sample_losses(forward(taken.x[new:]), taken.y[new:], step.active)
        loss = loss + (weights * losses).sum() / weights.sum().clamp_min(1)
        return Outcome(loss=loss, outputs=None, step=taken)

    def interference(self, forward: Forward, step: Step, loss: Tensor) -> Tensor:
        """s: how much a step on the new samples would add to the loss of each candidate.

        The loss is that of the new samples, with its graph; s is ``(step.replayed,)``.
        """
        evaluates = self.settings.scoring == "eval"
        virtual = VirtualStep(self.context.model, loss, lr=self._lr)
        x, y = step.x[step.new :], step.y[step.new :]
        with self.context.evaluating() if evaluates else torch.no_grad():
            after = sample_losses(virtual(x), y, step.active)
            return after - sample_losses(forward(x), y, step.active)

    def state_dict(self) -> dict[str, Tensor]:
        """The classes of the last stream batch."""
        return {"previous": torch.tensor(self._previous, dtype=torch.int64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._previous = state["previous"].tolist()
