"""ER + LwF: replay, and distillation from an earlier self.

Li & Hoiem, "Learning without Forgetting" (ECCV 2016), with replay as in
Soutif-Cormerais et al., "A Comprehensive Empirical Evaluation on Online
Continual Learning" (ICCV Workshops 2023). A teacher is a copy of the model,
made before the current stretch of the stream. The step minimises

    CE(joint) + α 1/n Σᵢ KL(qᵢ ‖ pᵢ),   p = softmax_A(z/T),  q = softmax_A(z'/T),

over all n samples of the joint batch, with z the model's logits, z' those of
the teacher and A the classes that are distilled; there is no factor T².

In the survey the teacher is copied where a task begins, and A is made of the
classes that appear from the second task on, those of the current task among
them. In LwF itself A is what the teacher has learned. The survey opens all
units of a task at its first batch; here a unit opens with its first sample.
Without boundaries the teacher is copied every so many stream batches, or
whenever a class arrives that has not been learned before.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ocar.config import require, require_one_of
from ocar.methods.context import Context
from ocar.methods.objective import Begun, Forward, Objective, Outcome, Step
from ocar.methods.settings import LearnerSettings
from ocar.models.head import mask_logits
from ocar.state import check_names, with_prefix, without_prefix


@dataclass(frozen=True, kw_only=True)
class ERLwFSettings(LearnerSettings):
    """Settings of ER + LwF."""

    alpha: float = 1.0
    """Weight of the distillation."""

    temperature: float = 2.0
    """T: divides the logits of model and teacher."""

    teacher: Literal["boundary", "batches", "labels"] = "boundary"
    """When the teacher is copied: at task boundaries, which the learner must then be told, every
    ``refresh`` stream batches, or when a label arrives that has not been learned before."""

    refresh: int = 100
    """Stream batches from one copy to the next, with ``teacher="batches"``."""

    distilled: Literal["survey", "paper"] = "survey"
    """The classes that are distilled: those that appeared since the first copy (the survey's
    code), or those that the teacher has learned (the paper)."""

    teacher_mode: Literal["train", "eval"] = "train"
    """Normalise the teacher's features by the joint batch (the survey's code), or by its running
    statistics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("alpha", self.alpha, 0 <= self.alpha < float("inf"), "at least 0")
        valid = 0 < self.temperature < float("inf")
        require("temperature", self.temperature, valid, "larger than 0")
        require_one_of("teacher", self.teacher, ("boundary", "batches", "labels"))
        require("refresh", self.refresh, self.refresh >= 1, "at least 1")
        require_one_of("distilled", self.distilled, ("survey", "paper"))
        require_one_of("teacher_mode", self.teacher_mode, ("train", "eval"))
        fits = self.likelihood == "categorical"
        require("likelihood", self.likelihood, fits, "'categorical': a regression has no classes")

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy and distillation."""
        return Distillation(self, context)


class Distillation(Objective):
    """CE(joint) + α KL(teacher ‖ model) over the distilled classes.

    The teacher is a module of its own, so that a curvature which watches the model does not see
    it. Its tensors are only ever overwritten, except when the head doubles.

    Args:
        settings: The settings.
        context: The parts of the learner.
    """

    def __init__(self, settings: ERLwFSettings, context: Context) -> None:
        assert context.head is not None
        self.settings = settings
        self.wants_boundaries = settings.teacher == "boundary"
        self.head = context.head
        self.model = context.model
        self.teacher = copy.deepcopy(context.model).requires_grad_(False)
        self.has_teacher = False
        """Whether the teacher has been copied; until then nothing is distilled."""
        self._mask = torch.zeros_like(self.head.active)
        self._distilled: set[int] = set()
        self._learned: set[int] = set()
        self._batches = 0
        self._ended = False

    @property
    def distilled(self) -> tuple[int, ...]:
        """A: the units that are distilled."""
        return tuple(sorted(self._distilled))

    def boundary(self) -> None:
        """A task has ended: the next batch copies the teacher."""
        self._ended = True

    def begin(self, batch: Begun) -> Sequence[float]:
        """Copy the teacher where it is time, and say what is distilled."""
        self._fit_teacher()
        self._set_modes()
        before = set(self._distilled)
        if self._learned and self._is_due(batch.units):
            self._copy_teacher()
        if self.has_teacher and self.settings.distilled == "survey":
            self._distilled.update(batch.units)
        if self._distilled != before or self._mask.shape != self.head.active.shape:
            self._write_mask()
        self._learned.update(batch.units)
        self._batches += 1
        self._ended = False
        return ()

    def _is_due(self, units: Iterable[int]) -> bool:
        if self.settings.teacher == "boundary":
            return self._ended
        if self.settings.teacher == "batches":
            return self._batches % self.settings.refresh == 0
        return not self._learned.issuperset(units)

    def _fit_teacher(self) -> None:
        """Give the teacher the units that the head has gained, which nothing was learned by yet."""
        layer = self.teacher.get_submodule(self.head.name)
        for mine, theirs in zip(layer.parameters(), self.head.layer.parameters(), strict=True):
            if mine.shape != theirs.shape:
                grown = theirs.detach().clone()
                grown[: mine.shape[0]] = mine
                mine.data = grown

    def _set_modes(self) -> None:
        """Those of the model, in which a frozen BatchNorm is in eval mode, or eval mode for all."""
        for mine, theirs in zip(self.teacher.modules(), self.model.modules(), strict=True):
            mine.training = theirs.training and self.settings.teacher_mode == "train"

    @torch.no_grad()
    def _copy_teacher(self) -> None:
        weights = [p.detach() for p in self.model.parameters()]
        torch._foreach_copy_(list(self.teacher.parameters()), weights)
        for mine_buffer, buffer in zip(self.teacher.buffers(), self.model.buffers(), strict=True):
            mine_buffer.copy_(buffer)
        self.has_teacher = True
        if self.settings.distilled == "paper":
            self._distilled = set(self._learned)

    def _write_mask(self) -> None:
        if self._mask.shape != self.head.active.shape:
            self._mask = torch.zeros_like(self.head.active)
        units = torch.tensor(self.distilled, dtype=torch.int64)
        self._mask.zero_().index_fill_(0, units.to(self._mask.device, non_blocking=True), True)

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step; plain cross-entropy as long as nothing is distilled."""
        assert step.active is not None
        outputs = forward(step.x)
        loss = functional.cross_entropy(mask_logits(outputs, step.active), step.y)
        with torch.no_grad():
            targets = self.teacher(step.x)
        # With every class masked both distributions are uniform, and the divergence is 0: a
        # captured graph need not know whether there is a teacher.
        kl = divergence(targets, outputs, self._mask, temperature=self.settings.temperature)
        return Outcome(loss=loss + self.settings.alpha * kl, outputs=outputs)

    def state_dict(self) -> dict[str, Tensor]:
        """The teacher, what it knows, and the counters."""
        counters = (self._batches, self._ended, self.has_teacher)
        return {
            **with_prefix("teacher", self._tensors()),
            "distilled": torch.tensor(self.distilled, dtype=torch.int64),
            "learned": torch.tensor(sorted(self._learned), dtype=torch.int64),
            "counters": torch.tensor(counters, dtype=torch.int64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            CheckpointError: The state is of another model.
        """
        teacher = without_prefix("teacher", state)
        in_head = {id(p) for p in self.teacher.get_submodule(self.head.name).parameters()}
        for name, parameter in self.teacher.named_parameters():
            given = teacher.get(name)
            if given is not None and id(parameter) in in_head:  # it may have more units
                parameter.data = torch.empty(
                    given.shape, dtype=parameter.dtype, device=parameter.device
                )
        check_names("teacher", teacher, self._tensors())
        for name, tensor in self._tensors().items():
            tensor.copy_(teacher[name])
        self._distilled = set(state["distilled"].tolist())
        self._learned = set(state["learned"].tolist())
        self._batches, ended, has_teacher = state["counters"].tolist()
        self._ended, self.has_teacher = bool(ended), bool(has_teacher)
        self._write_mask()

    def _tensors(self) -> dict[str, Tensor]:
        named = {**dict(self.teacher.named_parameters()), **dict(self.teacher.named_buffers())}
        return {name: tensor.detach() for name, tensor in named.items()}


def divergence(targets: Tensor, outputs: Tensor, over: Tensor, *, temperature: float) -> Tensor:
    """1/n Σᵢ KL(qᵢ ‖ pᵢ) of softmax distributions over some classes, at a temperature.

    Args:
        targets: Logits of q, ``(n, outputs)``.
        outputs: Logits of p, ``(n, outputs)``.
        over: The classes that take part, ``(outputs,)`` of bool.
        temperature: What logits are divided by.
    """
    log_q = mask_logits(targets / temperature, over).log_softmax(1)
    log_p = mask_logits(outputs / temperature, over).log_softmax(1)
    return functional.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
