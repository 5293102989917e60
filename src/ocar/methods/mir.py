"""MIR: maximally interfered retrieval.

Aljundi et al., "Online Continual Learning with Maximally Interfered Retrieval"
(NeurIPS 2019). Of a random part of the memory those samples are replayed that
a step on the new samples alone would hurt most,

    s(x) = CE(x; w − α ∇CE(new; w)) − CE(x; w),

and the step minimises CE(new) + CE(the samples with the largest s), two means.

The code with which the published tables were made leaves out candidates of the
classes in the stream batch before, and normalises features by the candidates
themselves while it scores them. Both are options. There the candidates are
drawn from the other classes; here they are drawn from all and those of the
excluded classes are passed over, which gives every step the same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ocar.config import require, require_one_of
from ocar.methods.context import Context
from ocar.methods.objective import Begun, Forward, Objective, Outcome, Step
from ocar.methods.settings import LearnerSettings
from ocar.methods.virtual import VirtualStep
from ocar.models.head import mask_logits


@dataclass(frozen=True, kw_only=True)
class MIRSettings(LearnerSettings):
    """Settings of MIR."""

    subsample: int = 128
    """Candidates drawn from memory, of which ``replay_batch`` are replayed."""

    exclude: Literal["previous", "none"] = "previous"
    """Candidates to pass over: those of the classes in the stream batch before this one (the
    published tables' code), or none."""

    scoring: Literal["train", "eval"] = "train"
    """Score with BatchNorm's statistics of the candidates, which then move the running ones (the
    published tables' code), or with the running statistics."""

    virtual_lr: float | None = None
    """Size of the virtual step; by default the learning rate. The step is one of plain SGD,
    whatever is done to the gradient of the real one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        enough = self.subsample >= max(1, self.replay_batch)
        require("subsample", self.subsample, enough, f"at least {self.replay_batch}, what is used")
        require_one_of("exclude", self.exclude, ("previous", "none"))
        require_one_of("scoring", self.scoring, ("train", "eval"))
        valid = self.virtual_lr is None or 0 < self.virtual_lr < float("inf")
        require("virtual_lr", self.virtual_lr, valid, "larger than 0, or None for the rate itself")
        fits = self.likelihood == "categorical"
        require(
            "likelihood", self.likelihood, fits, "'categorical': losses of classes are compared"
        )

    @property
    def draws(self) -> tuple[int, ...]:
        """The candidates."""
        return (self.subsample if self.replay_batch else 0,)

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy of the new and of the most interfered samples."""
        return InterferedRetrieval(self, context)


class InterferedRetrieval(Objective):
    """CE(new) + CE(those of the candidates that a step on the new would hurt most).

    Args:
        settings: The settings.
        context: The parts of the learner.
    """

    joint = False

    def __init__(self, settings: MIRSettings, context: Context) -> None:
        assert context.head is not None
        self.settings = settings
        self.context = context
        self.head = context.head
        self._previous: list[int] = []
        self._excluded = torch.zeros_like(self.head.active)

    def begin(self, batch: Begun) -> Sequence[float]:
        """Mark the classes of the stream batch before this one."""
        if self._excluded.shape != self.head.active.shape:
            self._excluded = torch.zeros_like(self.head.active)
        if self.settings.exclude == "previous":
            previous = torch.tensor(self._previous, dtype=torch.int64)
            previous = previous.to(self._excluded.device, non_blocking=True)
            self._excluded.zero_().index_fill_(0, previous, True)
            self._previous = sorted(set(batch.units))
        return ()

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step; plain cross-entropy where nothing is replayed."""
        assert step.active is not None
        new, y = step.new, step.y
        loss = functional.cross_entropy(mask_logits(forward(step.x[:new]), step.active), y[:new])
        if not step.replayed:
            return Outcome(loss=loss, outputs=None)
        increase = self.interference(forward, step, loss)
        allowed = self._excluded[y[new:]].logical_not()
        increase = torch.where(allowed, increase, -torch.inf)
        chosen = increase.topk(min(self.settings.replay_batch, step.replayed)).indices
        # Where too few candidates are allowed, the others are there for their shape alone.
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
        losses = self._losses(forward, taken.x[new:], taken.y[new:], step.active)
        loss = loss + (weights * losses).sum() / weights.sum().clamp_min(1)
        return Outcome(loss=loss, outputs=None, step=taken)

    def interference(self, forward: Forward, step: Step, loss: Tensor) -> Tensor:
        """s: what a step on the new samples would add to the loss of each candidate.

        Args:
            forward: The model.
            step: The new samples and the candidates.
            loss: The loss of the new samples, with its graph.

        Returns:
            One number a candidate, ``(step.replayed,)``.
        """
        lr = self.context.lr if self.settings.virtual_lr is None else self.settings.virtual_lr
        virtual = VirtualStep(self.context.model, loss, lr=lr)
        x, y = step.x[step.new :], step.y[step.new :]
        with self._scoring():
            after = self._losses(virtual, x, y, step.active)
            return after - self._losses(forward, x, y, step.active)

    def _scoring(self) -> AbstractContextManager[None]:
        return self.context.evaluating() if self.settings.scoring == "eval" else torch.no_grad()

    @staticmethod
    def _losses(forward: Forward, x: Tensor, y: Tensor, active: Tensor | None) -> Tensor:
        assert active is not None
        return functional.cross_entropy(mask_logits(forward(x), active), y, reduction="none")

    def state_dict(self) -> dict[str, Tensor]:
        """The classes of the last stream batch."""
        return {"previous": torch.tensor(self._previous, dtype=torch.int64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._previous = state["previous"].tolist()
