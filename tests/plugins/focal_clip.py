"""A method and a gradient transform of one's own: the focal loss, and clipped gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import ocar
from ocar.config import require
from ocar.methods.context import Context
from ocar.methods.er import ERSettings
from ocar.methods.objective import Forward, Objective, Outcome, Step
from ocar.methods.transform import Transform, TransformSettings
from ocar.models.head import mask_logits


@dataclass(frozen=True, kw_only=True)
class FocalSettings(ERSettings):
    """Replay with the focal loss of Lin et al. (ICCV 2017), (1 − p)^γ CE."""

    gamma: float = 2.0
    """γ: how little samples count that are predicted well; 0 for cross-entropy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("gamma", self.gamma, 0 <= self.gamma < float("inf"), "at least 0")

    def make_objective(self, context: Context) -> Objective:
        return Focal(self.gamma)


class Focal(Objective):
    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        outputs = forward(step.x)
        assert step.active is not None
        logits = mask_logits(outputs, step.active)
        losses = functional.cross_entropy(logits, step.y, reduction="none")
        return Outcome(loss=((1 - (-losses).exp()) ** self.gamma * losses).mean(), outputs=outputs)


@dataclass(frozen=True, kw_only=True)
class ClipSettings(TransformSettings):
    """Gradients at most as long as some times their mean length so far."""

    times: float = 1.0
    """How many times as long."""

    def make(self, context: Context, objective: Objective) -> Transform:
        return Clip(context.model, self.times)


class Clip(Transform):
    def __init__(self, model: nn.Module, times: float) -> None:
        self.model = model
        self.times = times
        device = next(model.parameters()).device
        self.mean = torch.zeros((), device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)

    @torch.no_grad()
    def rewrite_(self) -> None:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        self.count += 1
        self.mean += (norm - self.mean) / self.count
        torch._foreach_mul_(grads, (self.times * self.mean / norm).clamp(max=1.0))

    def tensors(self) -> Sequence[Tensor]:
        return [self.mean, self.count]

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.mean.copy_(state["mean"])
        self.count.copy_(state["count"])


ocar.register("focal", FocalSettings)
ocar.register("clip", ClipSettings)
