"""Online Curvature-Aware Replay: experience replay solved as a second-order problem.

Urettini & Carta, "Online Curvature-Aware Replay: Leveraging 2nd Order
Information for Online Continual Learning" (ICML 2025). The step is

    w ← w − α (F̄ + τI)⁻¹ ∇L̄,

with L̄ the mean loss of the joint batch and F̄ the Fisher information of the
model's own predictions on it, in which a replayed sample weighs more than a new
one, averaged over time and approximated by K-FAC. The gradient moves freely
where memory and new data leave it room and slowly where predictions on old data
would change; τ bounds the acceleration and grows slowly.

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

from ocar.config import require, require_one_of
from ocar.curvature import KFAC, Curvature, DenseFisher
from ocar.curvature.base import at_step
from ocar.curvature.fisher import parse_root
from ocar.guard import Guard
from ocar.learner import Learner
from ocar.methods.context import Context
from ocar.methods.er import ERSettings
from ocar.methods.objective import Forward, Objective, Step
from ocar.methods.settings import Augmenter, Normalizer
from ocar.methods.transform import Transform, TransformSettings

ROUND = 16
"""Steps with an exact Fisher are captured anew for so many more classes."""


@dataclass(frozen=True, kw_only=True)
class OCARSettings(TransformSettings):
    """Settings of the curvature-aware gradient; any objective with a prediction goes with it."""

    needs_predictions = True

    tau_step: float
    """Δτ: what each gradient step adds to the damping."""

    ema: float
    """Weight of a new estimate in the moving average of the curvature (α_EMA)."""

    tau: float | None = None
    """The damping τ at the start; by default the learning rate."""

    replay_weight: Literal["ratio", "lambda", "one-plus-lambda"] | None = None
    """Weight of a replayed sample in the Fisher, 1 being that of a new one: ``"ratio"`` for
    n_known / n_new (the authors' code), ``"lambda"`` for λ (Algorithm 1), ``"one-plus-lambda"``
    for 1 + λ (the paper's text). By default the ratio where classes arrive, else λ."""

    increments: Literal["classes", "domains"] = "classes"
    """What λ follows: with ``"classes"`` it is n_known / n_new, at least 1; with ``"domains"``
    it starts at 1 and each gradient step adds Δτ."""

    n_new: int | None = None
    """Classes in the current stretch of the stream; by default it is estimated."""

    window: int = 10
    """Stream batches over which distinct labels are counted to estimate ``n_new``."""

    curvature: Literal["kfac", "dense"] = "kfac"
    """K-FAC, or the full Fisher for tiny models."""

    fisher: str = "sketched(2)"
    """Root of the Fisher, see :mod:`ocar.curvature.fisher`."""

    fisher_passes: Literal["first", "every"] = "first"
    """Renew the curvature on the first pass over a stream batch, or on every pass."""

    fisher_forward: Literal["shared", "own"] = "shared"
    """Take the Fisher from the forward pass of the loss, or from one more, as the authors'
    code does (BatchNorm's running statistics then move once more)."""

    damping_kind: Literal["factored", "exact"] = "factored"
    """Damp each Kronecker factor, balanced by π (the authors' code), or A ⊗ G + τI (the text)."""

    weighting: Literal["gradients", "both"] = "gradients"
    """Sample weights enter G alone (the authors' code), or A and G."""

    sharing: Literal["expand", "reduce"] = "expand"
    """How locations of a layer with shared weights count, see :mod:`ocar.curvature.factors`."""

    norm_layers: bool = False
    """Precondition normalisation layers too."""

    track_norms: bool = False
    """Report the ratio of gradient norms after and before."""

    def __post_init__(self) -> None:
        require("tau_step", self.tau_step, 0 <= self.tau_step < float("inf"), "at least 0")
        require("ema", self.ema, 0 < self.ema <= 1, "in (0, 1]")
        valid = self.tau is None or 0 < self.tau < float("inf")
        require("tau", self.tau, valid, "larger than 0, or None for the learning rate")
        valid = self.n_new is None or self.n_new >= 1
        require("n_new", self.n_new, valid, "at least 1, or None to estimate it")
        require("window", self.window, self.window >= 1, "at least 1")
        weights = ("ratio", "lambda", "one-plus-lambda")
        if self.replay_weight is not None:
            require_one_of("replay_weight", self.replay_weight, weights)
        require_one_of("increments", self.increments, ("classes", "domains"))
        fits = self.replay_weight != "ratio" or self.increments == "classes"
        require("replay_weight", self.replay_weight, fits, "a form of λ where domains change")
        require_one_of("curvature", self.curvature, ("kfac", "dense"))
        require_one_of("fisher_passes", self.fisher_passes, ("first", "every"))
        require_one_of("fisher_forward", self.fisher_forward, ("shared", "own"))
        require_one_of("damping_kind", self.damping_kind, ("factored", "exact"))
        require_one_of("weighting", self.weighting, ("gradients", "both"))
        require_one_of("sharing", self.sharing, ("expand", "reduce"))
        parse_root(self.fisher)

    def make(self, context: Context, objective: Objective) -> Transform:
        """The curvature-aware transform for a learner."""
        curvature = self.make_curvature(
            context.model,
            lr=context.lr,
            head=None if context.head is None else context.head.name,
            likelihood=context.likelihood,
            seed=context.seed,
        )
        return OCARTransform(self, curvature, joint=objective.joint)

    def make_curvature(
        self, model: nn.Module, *, lr: float, head: str | None, likelihood: str, seed: int
    ) -> Curvature:
        """The preconditioner of a model, its damping growing with the steps.

        Args:
            model: What learns.
            lr: The learning rate, where the damping starts unless ``tau`` says otherwise.
            head: Name of the layer that makes the outputs; None for the last linear one.
            likelihood: ``"categorical"`` or ``"gaussian"``.
            seed: Seed of the random root of the Fisher.
        """
        start = lr if self.tau is None else self.tau

        def tau(step: int) -> float:
            return start + self.tau_step * step

        common: dict[str, Any] = {
            "damping": tau,
            "ema": self.ema,
            "fisher": self.fisher,
            "likelihood": likelihood,
            "track_norms": self.track_norms,
            "seed": seed,
        }
        if self.curvature == "dense":
            return DenseFisher(model, **common)
        return KFAC(
            model,
            damping_kind=self.damping_kind,
            weighting=self.weighting,
            sharing=self.sharing,
            norm_layers=self.norm_layers,
            head=head,
            **common,
        )


class OCARTransform(Transform):
    """Preconditions the gradient with a curvature that weighs the memory more.

    Args:
        settings: The settings.
        curvature: The preconditioner.
        joint: Whether the objective's forward pass can be used for the Fisher.
    """

    def __init__(self, settings: OCARSettings, curvature: Curvature, *, joint: bool) -> None:
        self.settings = settings
        self.curvature = curvature
        self.replay_weight = 1.0
        self._shared = joint and settings.fisher_forward == "shared"
        self._recent: deque[frozenset[int]] = deque(maxlen=settings.window)

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """That of the random root of the Fisher."""
        return (self.curvature.generator,)

    def begin(self, units: Sequence[int], *, known: int) -> Sequence[float]:
        """Count the classes of the stretch and set the weight of replayed samples."""
        self._recent.append(frozenset(units))
        self.replay_weight = self._weight(known)
        return self.replay_weight, self.curvature.step

    def shape(self, classes: int) -> int | None:
        """For how many classes a root that grows with them has columns; None for others."""
        if not self.curvature.fisher.grows or classes == 0:
            return None
        self.curvature.most_classes = -(-classes // ROUND) * ROUND
        return self.curvature.most_classes

    @property
    def classes_in_stretch(self) -> int:
        """n_new: given, or the distinct labels of the last few stream batches."""
        if self.settings.n_new is not None:
            return self.settings.n_new
        return max(1, len(frozenset().union(*self._recent)))

    def _weight(self, known: int) -> float:
        ratio = known / self.classes_in_stretch
        if self.settings.increments == "domains":
            strength = 1 + self.settings.tau_step * self.curvature.step  # λ
        else:
            strength = max(1.0, ratio)
        kind = self.settings.replay_weight
        if kind == "one-plus-lambda":
            return 1 + strength
        ratio_by_default = kind is None and self.settings.increments == "classes"
        return ratio if kind == "ratio" or ratio_by_default else strength

    def _renews(self, step: Step) -> bool:
        return step.index == 0 or self.settings.fisher_passes == "every"

    def watch(self, step: Step) -> AbstractContextManager[object]:
        """Capture the objective's forward pass where the Fisher is taken from it."""
        stack = ExitStack()
        stack.enter_context(self.curvature.follow())
        if self._renews(step) and self._shared:
            stack.enter_context(self.curvature.capture())
        return stack

    def observe(self, step: Step, outputs: Tensor | None, forward: Forward) -> Tensor | None:
        """Take the curvature of the joint batch into the average."""
        if not self._renews(step):
            return outputs
        if outputs is None or not self._shared:
            with self.curvature.capture():
                outputs = forward(step.x)
        replay_weight, clock = step.numbers.unbind()
        self.curvature.clock = clock + step.index
        weights = outputs.new_ones(outputs.shape[0], dtype=torch.float32)
        weights[step.new :] = replay_weight
        self.curvature.update(
            outputs, weights=weights, targets=step.y, active=step.active, accepted=step.trusted
        )
        return outputs

    def rewrite_(self) -> None:
        """Precondition the gradients."""
        self.curvature.precondition_()

    def replayed(self, steps: int) -> None:
        """Bring the counters of the curvature up to date."""
        last = 0 if self.settings.fisher_passes == "first" else steps - 1
        self.curvature.replayed(steps, renewed=last)

    def check(self) -> None:
        """Raise if a batch had no finite curvature."""
        self.curvature.check()

    def report(self) -> dict[str, float]:
        """τ, the weight of replayed samples, and the ratio of norms where it is tracked."""
        values = {
            "tau": at_step(self.curvature.damping, self.curvature.step),
            "replay_weight": self.replay_weight,
        }
        if self.curvature.norm_ratio is not None:
            values["norm_ratio"] = float(self.curvature.norm_ratio)
        return values

    def state_dict(self) -> dict[str, Tensor]:
        """The curvature and the labels in the window."""
        recent = {f"recent.{i}": torch.tensor(sorted(s)) for i, s in enumerate(self._recent)}
        return {**{f"curvature.{k}": v for k, v in self.curvature.state_dict().items()}, **recent}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        prefix = "curvature."
        own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        self.curvature.load_state_dict(own)
        count = sum(name.startswith("recent.") for name in state)
        recent = (frozenset(state[f"recent.{i}"].tolist()) for i in range(count))
        self._recent = deque(recent, maxlen=self.settings.window)


def OCAR(
    model: nn.Module,
    *,
    lr: float,
    tau_step: float,
    ema: float,
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
    tau: float | None = None,
    replay_weight: Literal["ratio", "lambda", "one-plus-lambda"] | None = None,
    increments: Literal["classes", "domains"] = "classes",
    n_new: int | None = None,
    window: int = 10,
    curvature: Literal["kfac", "dense"] = "kfac",
    fisher: str = "sketched(2)",
    fisher_passes: Literal["first", "every"] = "first",
    fisher_forward: Literal["shared", "own"] = "shared",
    damping_kind: Literal["factored", "exact"] = "factored",
    weighting: Literal["gradients", "both"] = "gradients",
    sharing: Literal["expand", "reduce"] = "expand",
    norm_layers: bool = False,
    track_norms: bool = False,
    guard: Guard | None = Guard(),  # noqa: B008 (it is frozen)
) -> Learner:
    """Online Curvature-Aware Replay on any model.

    The arguments are those of :class:`~ocar.methods.settings.LearnerSettings` and of
    :class:`OCARSettings`, and the ``guard`` of :class:`~ocar.learner.Learner`.

    Example::

        learner = OCAR(model, lr=7e-4, tau_step=3.7e-8, ema=0.14, memory=2000)
        for x, y in stream:
            learner.learn(x, y)
        logits = learner.predict(x)
    """
    given = locals()
    transform = OCARSettings(**{f.name: given[f.name] for f in fields(OCARSettings)})
    settings = ERSettings(**{f.name: given[f.name] for f in fields(ERSettings)})
    return Learner(model, settings, transform=transform, guard=guard)
