"""EWC: a quadratic penalty on changes of weights that old data need.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS
114(13) (2017). The loss gets the penalty

    λ/2 (w − w*)ᵀ F̄ (w − w*),

with w* earlier weights and F̄ the Fisher information of the model's predictions,
so that the gradient gets λ F̄ (w − w*). An online learner does not know when a task
ends. So w* are the weights of some gradient steps ago, and F̄ is averaged over time:

* EWC++ (Chaudhry et al., "Riemannian Walk for Incremental Learning", ECCV 2018):
  F̄ ← (1 − a) F̄ + a F after every step, used directly; or
* online EWC (Schwarz et al., "Progress & Compress", ICML 2018): F̄ ← (1 − a) F̄ + F
  with each new w*, where F is the mean since the previous w*.

With w* the weights before the last step, F the Fisher of replayed samples, and
replay in the loss, this is EWC in the convex comparison of Urettini & Carta (ICML
2025). Their text does not define the weights "at the previous step". If they were
the weights that the step starts from, the gradient of the penalty would be zero. So
either w* is one step older (``"explicit"``), or the penalty is evaluated where the
step ends (``"implicit"``), as the minimiser of the linearised loss with both
proximal terms:

    w ← w − α (I + αλF̄)⁻¹ (∇L + λ F̄ (w − w*)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ocar import state as states
from ocar.accel import linalg
from ocar.config import require_range
from ocar.curvature.dense import MAX_PARAMETERS
from ocar.curvature.fisher import Categorical, Gaussian, Likelihood, parse_root, separate
from ocar.curvature.recorder import PullBack, Recorder
from ocar.errors import ModelError
from ocar.methods.context import Context
from ocar.methods.objective import Begun, Forward, Objective, Step
from ocar.methods.transform import Transform, TransformSettings
from ocar.rng import make_generator


@dataclass(frozen=True, kw_only=True)
class EWCSettings(TransformSettings):
    """Settings of the quadratic penalty, for any objective with a predictive distribution."""

    needs_predictions = True
    one_device = "EWC takes the Fisher of each parameter by itself"

    strength: float
    """λ: weight of the penalty; 0 for none."""

    ema: float = 0.1
    """Weight of a new estimate in the moving average of the Fisher (a)."""

    accumulation: Literal["average", "sum"] = "average"
    """How estimates add up: as in EWC++, or as in online EWC."""

    structure: Literal["diagonal", "full"] = "diagonal"
    """The diagonal of the Fisher, or all of it for tiny models."""

    fisher: str = "sampled(1)"
    """Root of the Fisher, see :mod:`ocar.curvature.fisher`. It is taken for each sample separately:
    the cost is one backward pass for each column of each sample."""

    fisher_samples: Literal["replayed", "joint"] = "replayed"
    """The samples of the Fisher: replayed ones, or the joint batch, also without replay."""

    fisher_passes: Literal["first", "every"] = "every"
    """Estimate on the first pass over a stream batch, or on every pass."""

    anchor_every: int = 1
    """Gradient steps between one w* and the next."""

    penalty: Literal["explicit", "implicit"] = "explicit"
    """Where the penalty is evaluated: at the start of the step, or at its end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 0", "strength")
        require_range(self, "in (0, 1]", "ema")
        require_range(self, "at least 1", "anchor_every")
        parse_root(self.fisher)

    def make(self, context: Context, objective: Objective) -> Transform:
        """The penalty for a learner."""
        return EWCTransform(self, context, objective)


class EWCTransform(Transform):
    """Adds the gradient of the penalty."""

    has_layers = True

    def __init__(self, settings: EWCSettings, context: Context, objective: Objective) -> None:
        self.settings = settings
        self.context = context
        self.root = parse_root(settings.fisher)
        self.anchor = _flat(self.parameters)
        """w*, ``(parameters,)``."""
        size = self.anchor.numel()
        if settings.structure == "full" and size > MAX_PARAMETERS:
            raise ModelError(
                f"{type(context.model).__name__} has {size:,} trainable parameters; the full "
                f"Fisher is for at most {MAX_PARAMETERS:,}. Use structure='diagonal'."
            )
        shape = (size, size) if settings.structure == "full" else (size,)
        self.average = self.anchor.new_zeros(shape)
        """F̄, ``(parameters,)`` or ``(parameters, parameters)``."""
        self._recent = self.anchor.new_zeros(shape if settings.accumulation == "sum" else 0)
        self._counts = torch.zeros(2, dtype=torch.float64, device=self.anchor.device)
        self._generator = make_generator(context.seed, "ewc", context.device)
        self._pull = PullBack()
        self._joint = objective.joint
        self._shapes = [p.shape for p in self.parameters]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, in the order of the entries of the Fisher."""
        return [p for p in self.context.model.parameters() if p.requires_grad]

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """The generator of the random root of the Fisher."""
        return (self._generator,)

    def begin(self, batch: Begun) -> Sequence[float]:
        """Make room for new units of the head, which start without a penalty."""
        self._fit()
        return ()

    def _fit(self) -> None:
        shapes = [p.shape for p in self.parameters]
        if shapes != self._shapes:
            both = zip(self._shapes, shapes, strict=True)  # new rows come after the others
            old = [torch.arange(after.numel()) < before.numel() for before, after in both]
            places = torch.cat(old).nonzero().flatten().to(self.anchor.device)
            anchor = _flat(self.parameters)
            self.anchor = anchor.index_copy_(0, places, self.anchor)
            self.average = _spread(self.average, places, len(anchor))
            if self.settings.accumulation == "sum":
                self._recent = _spread(self._recent, places, len(anchor))
            self._shapes = shapes

    def _estimates(self, step: Step) -> bool:
        due = step.index == 0 or self.settings.fisher_passes == "every"
        return due and (step.replayed > 0 or self.settings.fisher_samples == "joint")

    def watch(self, step: Step) -> AbstractContextManager[object]:
        """Let the forward pass of the objective be differentiated for many columns at once."""
        if self._joint and self._estimates(step):
            return Recorder({}, self.context.model)
        return nullcontext()

    def observe(self, step: Step, outputs: Tensor | None, forward: Forward) -> Tensor | None:
        """Take the Fisher of the batch into the average."""
        if not self._estimates(step):
            return outputs
        if outputs is None:
            with Recorder({}, self.context.model):
                outputs = forward(step.x)
        first = step.new if self.settings.fisher_samples == "replayed" else 0
        estimate = self._fisher(outputs, step, first)
        count = self._counts[0]
        if self.settings.accumulation == "sum":
            count.add_(1)
            self._recent.add_((estimate - self._recent) / count.to(estimate.dtype))
            return outputs
        whole = torch.ones_like(count)
        rate = torch.where(count == 0, whole, self.settings.ema)  # the first is taken whole
        self.average.lerp_(estimate, rate.to(estimate.dtype))
        count.add_(1)
        return outputs

    @torch.no_grad()
    def _fisher(self, outputs: Tensor, step: Step, first: int) -> Tensor:
        """The Fisher of a batch from sample ``first`` on: its diagonal, or all of it."""
        likelihood: Likelihood
        if self.context.residuals is not None:
            likelihood = self.context.residuals.likelihood(outputs)
        elif step.active is None:
            likelihood = Gaussian(outputs)
        else:
            likelihood = Categorical(outputs, step.active)
        columns = self.root.columns(likelihood, self._generator, step.y)
        samples = outputs.shape[0]
        alone = separate(columns).unflatten(0, (-1, samples))[:, first:].flatten(0, 1)
        parameters = self.parameters
        pulled = self._pull(outputs, parameters, alone)
        scores = [
            p.new_zeros(len(alone), p.numel()) if g is None else g.flatten(1)
            for p, g in zip(parameters, pulled, strict=True)
        ]
        if self.settings.structure == "full":
            score = torch.cat(scores, dim=1)
            return score.mT @ score / (samples - first)
        return torch.cat([s.square().sum(0) for s in scores]) / (samples - first)

    @torch.no_grad()
    def rewrite_(self) -> None:
        """Add the gradient of the penalty, and renew w* when it is due."""
        parameters = self.parameters
        weights = _flat(parameters)
        implicit = self.settings.penalty == "implicit"
        if implicit:
            self._renew(weights)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        gradient = torch.cat([grad.flatten() for grad in grads])
        moved = weights - self.anchor
        held = self.average @ moved if self.average.dim() == 2 else self.average * moved
        gradient = gradient + self.settings.strength * held
        if implicit:
            gradient = self._solve(gradient)
        else:
            self._renew(weights)
        parts = gradient.split([p.numel() for p in parameters])
        for parameter, grad, part in zip(parameters, grads, parts, strict=True):
            grad.copy_(part.view_as(grad))
            parameter.grad = grad

    def _solve(self, vector: Tensor) -> Tensor:
        """(I + αλF̄)⁻¹ · vector."""
        assert self.context.lr is not None
        scaled = self.context.lr * self.settings.strength * self.average
        if scaled.dim() == 1:
            return vector / (1 + scaled)
        inverse = linalg.guarded_inverse(scaled.unsqueeze(0), 1.0, name="the penalty")
        return inverse[0] @ vector

    def _renew(self, weights: Tensor) -> None:
        """Every ``anchor_every`` steps: renew w*; online EWC then adds the Fisher."""
        estimates, steps = self._counts
        due = steps.remainder(self.settings.anchor_every) == 0  # a value, not a branch
        self.anchor.copy_(torch.where(due, weights, self.anchor))
        if self.settings.accumulation == "sum":
            total = (1 - self.settings.ema) * self.average + self._recent
            self.average.copy_(torch.where(due & (estimates > 0), total, self.average))
            self._recent.mul_(~due)
            estimates.mul_(~due)
        steps.add_(1)

    def tensors(self) -> Sequence[Tensor]:
        """The Fisher, w* and the counts."""
        return list(self._tensors().values())

    def state_dict(self) -> dict[str, Tensor]:
        """The Fisher, w*, the counts of steps and the generator."""
        self._fit()  # the head may have grown since the last step
        return {**self._tensors(), "generator": self._generator.get_state()}

    def _tensors(self) -> dict[str, Tensor]:
        kept = {"anchor": self.anchor, "average": self.average, "counts": self._counts}
        return kept | ({"recent": self._recent} if self.settings.accumulation == "sum" else {})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._fit()  # the head may have grown already
        states.check_names("penalty", state, self.state_dict())
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])
        self._generator.set_state(state["generator"].cpu())


def _flat(parameters: Sequence[nn.Parameter]) -> Tensor:
    """A copy of the weights as one vector."""
    return torch.cat([p.detach().flatten() for p in parameters])


def _spread(tensor: Tensor, places: Tensor, size: int) -> Tensor:
    """A vector or a square matrix of another size, with its entries at some places, else 0."""
    grown = tensor.new_zeros([size] * tensor.dim())
    grown[torch.meshgrid(*[places] * tensor.dim(), indexing="ij")] = tensor
    return grown
