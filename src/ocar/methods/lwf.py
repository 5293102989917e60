"""ER + LwF: replay, and distillation from an earlier model.

Li & Hoiem, "Learning without Forgetting" (ECCV 2016), with replay as in
Soutif-Cormerais et al., "A Comprehensive Empirical Evaluation on Online
Continual Learning" (ICCV Workshops 2023). A teacher is a copy of the model from
before the current stretch of the stream. The step minimises

    CE(joint) + α 1/n Σᵢ KL(qᵢ ‖ pᵢ),   p = softmax_A(z/T),  q = softmax_A(z'/T),

over all n samples of the joint batch, where z are the model's logits, z' the
teacher's, and A is the set of distilled classes. There is no factor T².

In the survey the teacher is copied at the start of each task, and A holds all
classes that appeared from the second task on, including the current task's. In
LwF itself A holds the classes that the teacher has learned. The survey opens all
units of a task at its first batch; here a unit opens with its first sample.
Without boundaries the teacher is copied every ``refresh`` stream batches, or
whenever a new class arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ocar.config import require_range
from ocar.methods.context import Context
from ocar.methods.copies import copy_modes_, copy_values_, fit_head_, floating_buffers, mark_units
from ocar.methods.objective import (
    Begun,
    ClassObjective,
    Forward,
    Objective,
    Outcome,
    Step,
    mean_loss,
)
from ocar.methods.settings import LearnerSettings
from ocar.methods.stretches import Kind, Stretches
from ocar.models.check import copy_model
from ocar.models.head import mask_logits
from ocar.state import check_names, with_prefix, without_prefix
from ocar.structure import call, named_tensors


@dataclass(frozen=True, kw_only=True)
class ERLwFSettings(LearnerSettings):
    """Settings of ER + LwF."""

    no_regression = "a regression has no classes"

    alpha: float = 1.0
    """Weight of the distillation."""

    temperature: float = 2.0
    """T: divides the logits of model and teacher."""

    teacher: Kind = "boundary"
    """When the teacher is copied: at task boundaries, for which ``boundary()`` must be called,
    every ``refresh`` stream batches, or when a new label arrives."""

    refresh: int = 100
    """Stream batches between two copies, with ``teacher="batches"``."""

    distilled: Literal["survey", "paper"] = "survey"
    """The distilled classes: all that appeared since the first copy (the survey's code), or all
    that the teacher has learned (the paper)."""

    teacher_mode: Literal["train", "eval"] = "train"
    """Normalise the teacher's features by the joint batch (the survey's code), or by its running
    statistics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 0", "alpha")
        require_range(self, "larger than 0", "temperature")
        require_range(self, "at least 1", "refresh")

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy and distillation."""
        return Distillation(self, context)


class Distillation(ClassObjective[ERLwFSettings]):
    """CE(joint) + α KL(teacher ‖ model) over the distilled classes.

    The teacher is a separate module, so a curvature that records the model does not see it. Its
    tensors are overwritten in place, except when the head doubles.
    """

    def __init__(self, settings: ERLwFSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.wants_boundaries = settings.teacher == "boundary"
        self.teacher = copy_model(context.model).requires_grad_(False)
        self._mask = torch.zeros_like(self.head.active)
        self._distilled: set[int] = set()
        self._stretches = Stretches(settings.teacher, quiet=0, length=settings.refresh)

    @property
    def has_teacher(self) -> bool:
        """Whether there is a teacher yet; without one nothing is distilled."""
        return self._stretches.ended > 0

    @property
    def distilled(self) -> tuple[int, ...]:
        """A: the units that are distilled."""
        return tuple(sorted(self._distilled))

    def boundary(self) -> None:
        """A task has ended: the next batch copies the teacher."""
        self._stretches.boundary()

    def begin(self, batch: Begun) -> Sequence[float]:
        """Copy the teacher if it is due, and update the distilled classes."""
        fit_head_(self.teacher.get_submodule(self.head.name), self.head.layer)
        model, train = self.context.model, self.settings.teacher_mode == "train"
        copy_modes_(self.teacher, model, train=train)  # a frozen BatchNorm is in eval mode
        if self._stretches.ends_before(batch.units):
            batch.keep(self._tensors().values())
            copy_values_(self.teacher, model)
            if self.settings.distilled == "paper":
                self._distilled = set(self._stretches.units)
        self._stretches.begin(batch.units)
        if self.has_teacher and self.settings.distilled == "survey":
            self._distilled.update(batch.units)
        self._mask = mark_units(self._mask, self._distilled, like=self.head.active)
        return ()

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step; plain cross-entropy while nothing is distilled."""
        outputs = forward(step.x)
        loss = mean_loss(outputs, step.y, step.active)
        with torch.no_grad():
            targets = call(self.teacher, step.x)
        # With every class masked both distributions are uniform, and the divergence is 0. So the
        # recorded step is the same with and without a teacher.
        kl = divergence(targets, outputs, self._mask, temperature=self.settings.temperature)
        return Outcome(loss=loss + self.settings.alpha * kl, outputs=outputs)

    def tensors(self) -> Sequence[Tensor]:
        """BatchNorm's statistics of a teacher in train mode."""
        return floating_buffers(self.teacher)

    def state_dict(self) -> dict[str, Tensor]:
        """The teacher, the stretches and the distilled classes."""
        return {
            **with_prefix("teacher", self._tensors()),
            **with_prefix("stretches", self._stretches.state_dict()),
            "distilled": torch.tensor(self.distilled, dtype=torch.int64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        teacher = without_prefix("teacher", state)
        in_head = {id(p) for p in self.teacher.get_submodule(self.head.name).parameters()}
        for name, parameter in self.teacher.named_parameters():
            if id(parameter) in in_head and name in teacher:  # it may have more units
                parameter.data = parameter.data.new_empty(teacher[name].shape)
        check_names("teacher", teacher, self._tensors())
        for name, tensor in self._tensors().items():
            tensor.copy_(teacher[name])
        self._distilled = set(state["distilled"].tolist())
        self._stretches.load_state_dict(without_prefix("stretches", state))
        self._mask = mark_units(self._mask, self._distilled, like=self.head.active)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in named_tensors(self.teacher).items()}


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
