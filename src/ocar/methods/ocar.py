"""Online Curvature-Aware Replay: experience replay solved as a second-order problem.

Urettini & Carta, "Online Curvature-Aware Replay: Leveraging 2nd Order
Information for Online Continual Learning" (ICML 2025). The step is

    w ← w − α (F̄ + τI)⁻¹ ∇L̄,

with L̄ the mean loss of the joint batch and F̄ the Fisher information of the
model's own predictions on the batch. F̄ weights replayed samples more than new
samples. It is averaged over time and approximated by K-FAC. The weights move slowly
in directions that would change predictions on old data, and freely in others. τ
bounds the acceleration and grows slowly.

The learning rate α, the damping τ and the weight of a new estimate in F̄ have defaults that adapt to
the model and the stream, see :mod:`ocar.methods.rate`; with a given α they follow the paper.

Where the paper's text, its Algorithm 1 and the authors' code differ, each variant
is a named option. The defaults follow the code, which made the paper's tables.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.accel.transfer import now
from ocar.config import require, require_range
from ocar.curvature import Curvature
from ocar.curvature.cost import Work
from ocar.methods.context import Context
from ocar.methods.curvature_settings import CurvatureSettings
from ocar.methods.objective import Begun, Forward, Objective, Step
from ocar.methods.rate import DivergenceRate
from ocar.methods.student_t import ResidualScale
from ocar.methods.transform import Transform
from ocar.state import with_prefix, without_prefix
from ocar.structure import Inputs

ROUND = 16
"""An exact Fisher has columns for a multiple of this number of classes, so that steps are recorded
again less often."""

LEAST_EMA = 0.1
"""Weight of a new estimate of the curvature, once ten batches have been seen."""


@dataclass(frozen=True, kw_only=True)
class OCARSettings(CurvatureSettings):
    """Settings of the curvature-aware gradient."""

    chooses_lr = True

    tau_step: float = 0.0
    """Δτ: how much each gradient step adds to the damping."""

    ema: float | None = None
    """Weight of a new estimate in the moving average of the curvature (α_EMA). By default 1/k for
    the k-th batch, but at least 0.1."""

    tau: float | None = None
    """The damping τ at the start; by default the learning rate, whatever it is. In a regression
    without a given rate it is also multiplied with the information of the outputs, see
    :meth:`OCARTransform.information`."""

    divergence: float = 3e-3
    """How much the steps on a batch may change the predictions, in nats a sample, where no learning
    rate is given; see :mod:`ocar.methods.rate`. More learns faster and forgets more."""

    replay_weight: Literal["ratio", "lambda", "one-plus-lambda"] | None = None
    """Weight of a replayed sample in the Fisher, where a new sample has weight 1: ``"ratio"`` for
    n_known / n_new (the authors' code), ``"lambda"`` for λ (Algorithm 1), ``"one-plus-lambda"``
    for 1 + λ (the paper's text). By default the ratio if classes arrive, else λ."""

    increments: Literal["classes", "domains"] = "classes"
    """What λ follows: with ``"classes"`` it is n_known / n_new, at least 1; with ``"domains"``
    it starts at 1 and each gradient step adds Δτ. A regression has no classes."""

    n_new: int | None = None
    """New classes of the current part of the stream; estimated by default."""

    window: int = 10
    """Stream batches over which distinct labels are counted to estimate ``n_new``."""

    head_size: Literal["classes", "labels"] = "classes"
    """Units that the head counts as: classes seen, or the largest label + 1 (the authors' code, for
    labels 0, 1, 2 ...). The head's G starts again when this number grows."""

    weighting: Literal["gradients", "both"] = "gradients"
    """Sample weights enter G alone (the authors' code), or A and G."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 0", "tau_step")
        require_range(self, "at least 1", "window")
        require_range(self, "larger than 0", "divergence")
        require_range(self, "in (0, 1]", "ema", none="or None")
        require_range(self, "larger than 0", "tau", none="or None for the learning rate")
        require_range(self, "at least 1", "n_new", none="or None to estimate it")
        fits = self.replay_weight != "ratio" or self.increments == "classes"
        require("replay_weight", self.replay_weight, fits, "a form of λ where domains change")

    def make(self, context: Context, objective: Objective) -> Transform:
        """The curvature-aware transform for a learner."""
        residuals = context.residuals
        lr = DivergenceRate(self.divergence, context) if context.lr is None else context.lr
        curvature = self.make_curvature(
            context.model,
            lr=lr,
            head=None if context.head is None else context.head.name,
            likelihood=context.likelihood,
            degrees_of_freedom=None if residuals is None else residuals.degrees_of_freedom,
            seed=context.seed,
        )
        curvature.share(context.shared)
        return OCARTransform(
            self,
            curvature,
            joint=objective.joint,
            lr=lr,
            passes=context.passes,
            scale=context.curvature_scale,
            residuals=residuals,
        )

    def make_curvature(
        self,
        model: nn.Module,
        *,
        lr: SupportsFloat,
        head: str | None,
        likelihood: str,
        seed: int,
        degrees_of_freedom: float | None = None,
    ) -> Curvature:
        """The preconditioner of a model.

        Args:
            model: The model that learns.
            lr: The learning rate, where the damping starts unless ``tau`` says otherwise.
            head: Name of the layer that makes the outputs; None for the last linear one.
            likelihood: ``"categorical"``, ``"gaussian"`` or ``"student-t"``.
            seed: Seed of the random root of the Fisher.
            degrees_of_freedom: ν of a Student-t likelihood; None for that of the curvature.
        """
        given: dict[str, Any] = {
            "damping": lambda step: self.tau_at(step, lr=lr),
            "ema": self.ema_of(math.inf),
            "head": head,
            "likelihood": likelihood,
            "seed": seed,
        }
        if degrees_of_freedom is not None:
            given["degrees_of_freedom"] = degrees_of_freedom
        return self.bind_curvature(model, given, "weighting")

    def tau_at(self, step: int, *, lr: SupportsFloat) -> float:
        """The damping after a number of gradient steps."""
        return (float(lr) if self.tau is None else self.tau) + self.tau_step * step

    def ema_of(self, batch: float) -> float:
        """The weight of the estimate of a batch in the moving average, the first batch being 1."""
        return max(LEAST_EMA, 1 / batch) if self.ema is None else self.ema


class OCARTransform(Transform):
    """Preconditions the gradient with a curvature that weighs the memory more.

    Args:
        settings: The settings.
        curvature: The preconditioner.
        joint: Whether the objective's forward pass can be used for the Fisher.
        lr: Learning rate; one that is a rule is multiplied into the gradient here.
        passes: Gradient steps a stream batch.
        scale: Factor of the weight of new and of replayed samples.
        residuals: The scale of the residuals of a Student-t likelihood; None for another.
    """

    has_layers = True

    def __init__(
        self,
        settings: OCARSettings,
        curvature: Curvature,
        *,
        joint: bool,
        lr: float | DivergenceRate,
        passes: int,
        scale: tuple[float, float] = (1.0, 1.0),
        residuals: ResidualScale | None = None,
    ) -> None:
        self.settings = settings
        self.residuals = residuals
        self.curvature = curvature
        self.replay_weight = 1.0
        self.rate = lr if isinstance(lr, DivergenceRate) else None
        self._lr = 0.0 if isinstance(lr, DivergenceRate) else lr  # what the host knows of it
        self.tau = settings.tau_at(0, lr=self._lr)
        self._passes = passes
        self._outputs = 1.0
        self._scale = scale
        self._numbers, self._index = torch.empty(0), 0  # of the present step
        self._why: dict[str, str] = {}
        self._scratch = accel.Scratch()
        self._weighed = ""
        self._shared = joint and settings.fisher_forward == "shared"
        self._recent: deque[frozenset[int]] = deque(maxlen=settings.window)

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """The generator of the random root of the Fisher."""
        return (self.curvature.generator,)

    def begin(self, batch: Begun) -> Sequence[float]:
        """Weights of replay and estimate, three of the rate, τ in each pass, size of the head."""
        self.curvature.begin(batch.keep, Work(batch.samples, self._passes))
        self._recent.append(frozenset(batch.units))
        self._outputs = 1.0 if batch.units else float(batch.outputs)
        self.replay_weight = self._weight(batch)
        steps = range(batch.step, batch.step + self._passes)
        taus = [self.settings.tau_at(step, lr=self._lr) for step in steps]
        self.tau = self.settings.tau_at(steps.stop, lr=self._lr)
        number = batch.step // self._passes + 1
        own = (0.0, 0.0, 0.0) if self.rate is None else self.rate.numbers(number)
        self._why = {} if self.rate is None else self.rate.why(*own[:2])
        weight = self.replay_weight * self._scale[1]
        return weight, self.settings.ema_of(number), *own, *taus, batch.largest + 1

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
        classes = self.settings.increments == "classes" and bool(batch.units)  # no regression
        strength = max(1.0, ratio) if classes else 1 + self.settings.tau_step * batch.step  # λ
        kind = self.settings.replay_weight or ("ratio" if classes else "lambda")
        counted = f"{batch.known} classes known, {self.n_new} of them new"
        self._weighed = f"{kind}: {counted}" if classes else f"{kind}: no classes arrive"
        return {"ratio": ratio, "lambda": strength, "one-plus-lambda": 1 + strength}[kind]

    def _renews(self, step: Step) -> bool:
        return step.index == 0 or self.settings.fisher_passes == "every"

    def curvature_table(self, model: nn.Module) -> str:
        """Which parameters have which curvature."""
        return self.curvature.table()

    def try_model(self, model: nn.Module, x: Inputs) -> None:
        """Raise if the curvature cannot record the model."""
        self.curvature.try_recording(x)

    def watch(self, step: Step) -> AbstractContextManager[object]:
        """Record the objective's forward pass if the Fisher is taken from it."""
        self._numbers, self._index = step.numbers, step.index
        if self.rate is not None and step.index == 0:
            self.rate.start_(step.numbers[2], step.numbers[3])
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
        new, replayed = step.weights
        dtype = torch.promote_types(outputs.dtype, torch.float32)
        weights = outputs.new_full(outputs.shape[:1], self._scale[0] * new, dtype=dtype)
        weights[step.new :] = step.numbers[0] * replayed
        if self.settings.head_size == "labels":
            self.curvature.units = step.numbers[-1]
        self.curvature.estimate(
            outputs,
            weights=weights,
            targets=step.y,
            active=step.active,
            variance=None if self.residuals is None else self.residuals.variance(outputs),
        )
        return outputs

    def prepare(self, step: Step) -> None:
        """Take the estimate into the average and renew the inverse."""
        if self._renews(step):
            damping = step.numbers[5 + step.index]
            if self.rate is not None and self.settings.tau is None:
                damping = damping + self.rate.damping * self.information()
            self.curvature.renew(damping, step.numbers[1])
            self.curvature.check_at_once()

    def information(self) -> Tensor | float:
        """Trace of the Fisher of a sample's outputs in a regression, else 1, which bounds it.

        Loss and Fisher of a regression grow with the number of outputs, and with the precision of a
        Student-t likelihood. A damping that grows with them keeps its share.
        """
        return self._outputs if self.residuals is None else self.residuals.information()

    def rewrite_(self) -> None:
        """Precondition the gradients, and multiply them with the learning rate if it is a rule."""
        if self.rate is None:
            self.curvature.rewrite_()
            return
        before = self._scratch.flat(self._gradients()) if self._index == 0 else None
        self.curvature.rewrite_()
        grads = self._gradients()
        if before is not None:
            self.rate.follow_(accel.inner(before, grads), self._numbers[4])
        torch._foreach_mul_(grads, self.rate.used.to(grads[0].dtype))

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.curvature.model.parameters() if p.grad is not None]

    def ok(self) -> Tensor:
        """Whether the curvature of the batch was finite."""
        return self.curvature.ok

    def tensors(self) -> Sequence[Tensor]:
        """The averages of the curvature, and the learning rate if it is a rule."""
        return [*self.curvature.tensors(), *(() if self.rate is None else self.rate.tensors())]

    def check(self) -> None:
        """Raise if the curvature of a batch was not finite."""
        self.curvature.check()

    def report(self) -> dict[str, SupportsFloat]:
        """τ, the weight of replayed samples, and what was chosen or is tracked."""
        values: dict[str, SupportsFloat] = {"tau": self.tau, "replay_weight": self.replay_weight}
        if self.rate is not None:
            values |= {"lr": now(self.rate.used), "divergence": now(self.rate.predicted)}
            if self.settings.tau is None:
                values["tau"] = now(self.rate.damping * self.information() + self.tau)
        if self.curvature.norm_ratio is not None:
            values["norm_ratio"] = float(self.curvature.norm_ratio)
        return values

    def why(self) -> Mapping[str, str]:
        """How the learning rate was chosen, if it is a rule, and the weight of replayed samples."""
        return {"replay_weight": self._weighed, **self._why}

    def state_dict(self) -> dict[str, Tensor]:
        """The curvature and the labels in the window."""
        recent = {f"recent.{i}": torch.tensor(sorted(s)) for i, s in enumerate(self._recent)}
        own = {} if self.rate is None else self.rate.state_dict()
        return {**with_prefix("curvature", self.curvature.state_dict()), **recent, **own}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.curvature.load_state_dict(without_prefix("curvature", state))
        if self.rate is not None:
            self.rate.load(state)
        count = sum(name.startswith("recent.") for name in state)
        recent = (frozenset(state[f"recent.{i}"].tolist()) for i in range(count))
        self._recent = deque(recent, maxlen=self.settings.window)
