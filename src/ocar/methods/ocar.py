"""Online Curvature-Aware Replay: experience replay solved as a second-order problem.

Urettini & Carta, "Online Curvature-Aware Replay: Leveraging 2nd Order
Information for Online Continual Learning" (ICML 2025). The step is

    w ← w − α (F̄ + τI)⁻¹ ∇L̄,

with L̄ the mean loss of the joint batch and F̄ the Fisher information of the
model's own predictions on it, in which a replayed sample weighs more than a new
one, averaged over time and approximated by K-FAC. The weights move slowly in
directions that would change predictions on old data, and freely in others; τ
bounds the acceleration and grows slowly.

Where the paper's text, its Algorithm 1 and the authors' code differ, each is a
named option; the defaults follow the code, which made the paper's tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ocar.config import require, require_range
from ocar.curvature import CURVATURES, Curvature
from ocar.curvature.cost import Work
from ocar.curvature.fisher import parse_root
from ocar.methods.context import Context
from ocar.methods.objective import Begun, Forward, Objective, Step
from ocar.methods.transform import Transform, TransformSettings
from ocar.state import with_prefix, without_prefix

ROUND = 16
"""An exact Fisher has columns for a multiple of this number of classes, so that steps are recorded
again less often."""


@dataclass(frozen=True, kw_only=True)
class CurvatureSettings(TransformSettings):
    """Settings of a gradient that a curvature preconditions, for any objective with predictions."""

    needs_predictions = True

    curvature: str | Curvature = "kfac"
    """``"kfac"``, ``"ekfac"``, ``"foof"``, ``"dense"`` (the full Fisher, for tiny models), the name
    of a registered kind, or, from Python, an object such as ``EKFAC()``, whose own options are
    then used in place of those below."""

    fisher: str = "sketched(2)"
    """Root of the Fisher, see :mod:`ocar.curvature.fisher`."""

    fisher_passes: Literal["first", "every"] = "first"
    """Renew the curvature on the first pass over a stream batch, or on every pass."""

    fisher_forward: Literal["shared", "own"] = "shared"
    """Take the Fisher from the forward pass of the loss, or from one more, as the authors'
    code does (BatchNorm's running statistics then move once more)."""

    damping_kind: Literal["factored", "exact"] = "factored"
    """Damp each Kronecker factor, balanced by π (the authors' code), or A ⊗ G + τI (the text)."""

    sharing: Literal["expand", "reduce"] = "expand"
    """How locations of a layer with shared weights count, see :mod:`ocar.curvature.blocks`."""

    norm_layers: bool = False
    """Precondition normalisation layers too."""

    track_norms: bool = False
    """Report the ratio of gradient norms after and before."""

    max_cost: float | None = 1.5
    """Operations of the curvature divided by those of the gradient steps, counted from shapes. To
    keep to it, the curvature of wide layers is split, see :mod:`ocar.curvature.cost`; None for
    never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = self.max_cost is None or self.max_cost > 0
        require("max_cost", self.max_cost, valid, "larger than 0, or None for no bound")
        if isinstance(self.curvature, str):
            CURVATURES.find(self.curvature)
        parse_root(self.fisher)


@dataclass(frozen=True, kw_only=True)
class OCARSettings(CurvatureSettings):
    """Settings of the curvature-aware gradient."""

    tau_step: float
    """Δτ: how much each gradient step adds to the damping."""

    ema: float
    """Weight of a new estimate in the moving average of the curvature (α_EMA)."""

    tau: float | None = None
    """The damping τ at the start; by default the learning rate."""

    replay_weight: Literal["ratio", "lambda", "one-plus-lambda"] | None = None
    """Weight of a replayed sample in the Fisher, where a new sample has weight 1: ``"ratio"`` for
    n_known / n_new (the authors' code), ``"lambda"`` for λ (Algorithm 1), ``"one-plus-lambda"``
    for 1 + λ (the paper's text). By default the ratio if classes arrive, else λ."""

    increments: Literal["classes", "domains"] = "classes"
    """What λ follows: with ``"classes"`` it is n_known / n_new, at least 1; with ``"domains"``
    it starts at 1 and each gradient step adds Δτ."""

    n_new: int | None = None
    """New classes of the current part of the stream; estimated by default."""

    window: int = 10
    """Stream batches over which distinct labels are counted to estimate ``n_new``."""

    weighting: Literal["gradients", "both"] = "gradients"
    """Sample weights enter G alone (the authors' code), or A and G."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 0", "tau_step")
        require_range(self, "in (0, 1]", "ema")
        require_range(self, "at least 1", "window")
        valid = self.tau is None or 0 < self.tau < float("inf")
        require("tau", self.tau, valid, "larger than 0, or None for the learning rate")
        valid = self.n_new is None or self.n_new >= 1
        require("n_new", self.n_new, valid, "at least 1, or None to estimate it")
        fits = self.replay_weight != "ratio" or self.increments == "classes"
        require("replay_weight", self.replay_weight, fits, "a form of λ where domains change")

    def make(self, context: Context, objective: Objective) -> Transform:
        """The curvature-aware transform for a learner."""
        curvature = self.make_curvature(
            context.model,
            lr=context.lr,
            head=None if context.head is None else context.head.name,
            likelihood=context.likelihood,
            seed=context.seed,
        )
        return OCARTransform(
            self, curvature, joint=objective.joint, lr=context.lr, passes=context.passes
        )

    def make_curvature(
        self, model: nn.Module, *, lr: float, head: str | None, likelihood: str, seed: int
    ) -> Curvature:
        """The preconditioner of a model.

        Args:
            model: The model that learns.
            lr: The learning rate, where the damping starts unless ``tau`` says otherwise.
            head: Name of the layer that makes the outputs; None for the last linear one.
            likelihood: ``"categorical"`` or ``"gaussian"``.
            seed: Seed of the random root of the Fisher.
        """
        given: dict[str, Any] = {
            "damping": lambda step: self.tau_at(step, lr=lr),
            "ema": self.ema,
            "head": head,
            "likelihood": likelihood,
            "seed": seed,
        }
        if isinstance(self.curvature, Curvature):
            return self.curvature.bind(model, **given)
        kind = CURVATURES.find(self.curvature)
        options = (
            "fisher",
            "damping_kind",
            "weighting",
            "sharing",
            "norm_layers",
            "track_norms",
            "max_cost",
        )
        taken = {field.name for field in fields(kind)}
        given |= {name: getattr(self, name) for name in options if name in taken}
        return kind(model, **given)

    def tau_at(self, step: int, *, lr: float) -> float:
        """The damping after a number of gradient steps."""
        return (lr if self.tau is None else self.tau) + self.tau_step * step


class OCARTransform(Transform):
    """Preconditions the gradient with a curvature that weighs the memory more.

    Args:
        settings: The settings.
        curvature: The preconditioner.
        joint: Whether the objective's forward pass can be used for the Fisher.
        lr: Learning rate.
        passes: Gradient steps a stream batch.
    """

    def __init__(
        self, settings: OCARSettings, curvature: Curvature, *, joint: bool, lr: float, passes: int
    ) -> None:
        self.settings = settings
        self.curvature = curvature
        self.replay_weight = 1.0
        self.tau = settings.tau_at(0, lr=lr)
        self._lr = lr
        self._passes = passes
        self._shared = joint and settings.fisher_forward == "shared"
        self._recent: deque[frozenset[int]] = deque(maxlen=settings.window)

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """The generator of the random root of the Fisher."""
        return (self.curvature.generator,)

    def begin(self, batch: Begun) -> Sequence[float]:
        """The weight of replayed samples, and τ in each pass."""
        self.curvature.begin(batch.keep, Work(batch.samples, self._passes))
        self._recent.append(frozenset(batch.units))
        self.replay_weight = self._weight(batch)
        steps = range(batch.step, batch.step + self._passes)
        taus = [self.settings.tau_at(step, lr=self._lr) for step in steps]
        self.tau = self.settings.tau_at(steps.stop, lr=self._lr)
        return self.replay_weight, *taus

    def shape(self, classes: int) -> int | None:
        """The classes that an exact root has columns for; None for other roots."""
        if not self.curvature.root.grows or classes == 0:
            return None
        self.curvature.most_classes = -(-classes // ROUND) * ROUND
        return self.curvature.most_classes

    @property
    def n_new(self) -> int:
        """New classes: given, or the distinct labels of the last few stream batches."""
        if self.settings.n_new is not None:
            return self.settings.n_new
        return max(1, len(frozenset().union(*self._recent)))

    def _weight(self, batch: Begun) -> float:
        ratio = batch.known / self.n_new
        if self.settings.increments == "domains":
            strength = 1 + self.settings.tau_step * batch.step  # λ
        else:
            strength = max(1.0, ratio)
        kind = self.settings.replay_weight
        if kind == "one-plus-lambda":
            return 1 + strength
        ratio_by_default = kind is None and self.settings.increments == "classes"
        return ratio if kind == "ratio" or ratio_by_default else strength

    def _renews(self, step: Step) -> bool:
        return step.index == 0 or self.settings.fisher_passes == "every"

    def try_model(self, model: nn.Module, x: Tensor) -> None:
        """Raise if the curvature cannot record the model."""
        self.curvature.try_recording(x)

    def watch(self, step: Step) -> AbstractContextManager[object]:
        """Record the objective's forward pass if the Fisher is taken from it."""
        stack = ExitStack()
        stack.enter_context(self.curvature.follow())
        if self._renews(step) and self._shared:
            stack.enter_context(self.curvature.record())
        return stack

    def observe(self, step: Step, outputs: Tensor | None, forward: Forward) -> Tensor | None:
        """Estimate the curvature of the joint batch."""
        if not self._renews(step):
            return outputs
        if outputs is None or not self._shared:
            with self.curvature.record():
                outputs = forward(step.x)
        weights = outputs.new_ones(outputs.shape[0], dtype=torch.float32)
        weights[step.new :] = step.numbers[0]
        self.curvature.estimate(outputs, weights=weights, targets=step.y, active=step.active)
        return outputs

    def prepare(self, step: Step) -> None:
        """Take the estimate into the average and renew the inverse."""
        if self._renews(step):
            self.curvature.renew(step.numbers[1 + step.index], self.settings.ema)
            self.curvature.check_at_once()

    def rewrite_(self) -> None:
        """Precondition the gradients."""
        self.curvature.rewrite_()

    def ok(self) -> Tensor:
        """Whether the curvature of the batch was finite."""
        return self.curvature.ok

    def tensors(self) -> Sequence[Tensor]:
        """The averages of the curvature."""
        return self.curvature.tensors()

    def check(self) -> None:
        """Raise if the curvature of a batch was not finite."""
        self.curvature.check()

    def report(self) -> dict[str, float]:
        """τ, the weight of replayed samples, and the ratio of norms if it is tracked."""
        values = {"tau": self.tau, "replay_weight": self.replay_weight}
        if self.curvature.norm_ratio is not None:
            values["norm_ratio"] = float(self.curvature.norm_ratio)
        return values

    def state_dict(self) -> dict[str, Tensor]:
        """The curvature and the labels in the window."""
        recent = {f"recent.{i}": torch.tensor(sorted(s)) for i, s in enumerate(self._recent)}
        return {**with_prefix("curvature", self.curvature.state_dict()), **recent}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.curvature.load_state_dict(without_prefix("curvature", state))
        count = sum(name.startswith("recent.") for name in state)
        recent = (frozenset(state[f"recent.{i}"].tolist()) for i in range(count))
        self._recent = deque(recent, maxlen=self.settings.window)
