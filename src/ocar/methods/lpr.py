"""LPR: Layerwise Proximal Replay.

Yoo et al., "Layerwise Proximal Replay: A Proximal Point Method for Online
Continual Learning" (ICML 2024). The gradient G of each layer, one row an output
and one column an input, is multiplied with

    (I + ω₀/c · 1/N Σ_n Σ_l z zᵀ)⁻¹,    c = L^β,

with z what the layer is given for the N samples of the memory at each of its L
locations, and a 1 for the bias. The step is the one that a proximal term
ω₀/c · E‖ΔW z‖² allows: it moves the layer freely where the memory has no inputs
and slowly where its outputs on the memory would change. With ω₀ = 0 nothing is
done.

The matrices are made anew every so many gradient steps, from the memory as it
is, augmented, with the model in eval mode. A normalisation layer has a 2 × 2
matrix for each channel, of its normalised input and 1. The code with which the
published tables were made normalises that input by the variance; the square
root of the variance, with which the layer itself does, is an option.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ocar import state as states
from ocar.accel.streams import is_capturing
from ocar.config import require, require_one_of
from ocar.curvature import factors, linalg
from ocar.curvature.recorder import reject_shared_parameters
from ocar.methods.context import Context
from ocar.methods.objective import Objective
from ocar.methods.transform import Transform, TransformSettings

CHUNK = 100
"""Samples of the memory that go through the model at once."""

PIXELS = 2**19
"""On an accelerator more of them do, as long as all have no more pixels than this."""

BatchNormKind = Literal["variance", "deviation", "plain"]

_MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, kw_only=True)
class LPRSettings(TransformSettings):
    """Settings of the proximal gradient; any objective goes with it."""

    omega0: float = 1.0
    """ω₀: how much the outputs of a layer on the memory are held; 0 does nothing."""

    omega_power: float = 1.0
    """β: a layer with L locations a sample is held by ω₀ / L^β."""

    refresh_every: int = 1
    """Gradient steps after which the matrices are made anew, when the next stream batch begins."""

    refresh_samples: int | None = None
    """Samples of the memory to make them from; None for all."""

    batchnorm: BatchNormKind = "variance"
    """Input of a BatchNorm layer's scale: centred and divided by the variance (the authors' code),
    by its root (``"deviation"``, as the layer does), or ``"plain"`` to leave its gradient alone."""

    def __post_init__(self) -> None:
        require("omega0", self.omega0, 0 <= self.omega0 < float("inf"), "at least 0")
        require("omega_power", self.omega_power, math.isfinite(self.omega_power), "a number")
        require("refresh_every", self.refresh_every, self.refresh_every >= 1, "at least 1")
        valid = self.refresh_samples is None or self.refresh_samples >= 1
        require("refresh_samples", self.refresh_samples, valid, "at least 1, or None for all")
        require_one_of("batchnorm", self.batchnorm, ("variance", "deviation", "plain"))

    def make(self, context: Context, objective: Objective) -> Transform:
        """The proximal transform for a learner."""
        return Transform() if self.omega0 == 0 else LPRTransform(self, context)


class LPRTransform(Transform):
    """Preconditions each layer by its inputs on the memory.

    Args:
        settings: The settings.
        context: The parts of the learner.
    """

    def __init__(self, settings: LPRSettings, context: Context) -> None:
        self.settings = settings
        self.context = context
        self.layers = _covered(context.model, norms=settings.batchnorm != "plain")
        reject_shared_parameters(self.layers)
        self.inverses = {name: _identity(layer) for name, layer in self.layers.items()}
        """The preconditioner of each layer, ``(groups, d_in, d_in)``, changed in place."""
        self.step = 0
        """Gradient steps taken."""
        self._due = 0

    def begin(self, units: Sequence[int], *, known: int) -> Sequence[float]:
        """Make the preconditioner anew when it is time and there is a memory."""
        if self.step >= self._due:
            every = self.settings.refresh_every
            self._due = (self.step // every + 1) * every
            if len(self.context.memory):
                self.refresh()
        return ()

    def refresh(self) -> None:
        """Make the preconditioner from the memory as it is."""
        memory, wanted = self.context.memory, self.settings.refresh_samples
        slots = memory.draw(len(memory) if wanted is None else wanted)
        moments: dict[str, Tensor] = {}
        locations: dict[str, int] = {}
        with self.context.evaluating(), self._adding_up(moments, locations):
            for chunk in slots.split(self._chunk(slots)):
                raw = memory.gather(chunk).x
                self.context.model(self.context.normalize(self.context.augment(raw)))
        for name, moment in moments.items():
            count = locations[name] / len(slots)
            moment *= self.settings.omega0 / count**self.settings.omega_power / len(slots)
        waits = self.context.device.type == "cpu"
        for name, inverse in _inverses(moments, waits=waits).items():
            self.inverses[name].copy_(inverse)  # a captured graph looks for it there

    def _chunk(self, slots: Tensor) -> int:
        """How many samples go through the model at once."""
        if self.context.device.type == "cpu":
            return CHUNK
        sample = self.context.memory.gather(slots[:1]).x[0]
        return max(CHUNK, PIXELS // math.prod(sample.shape[1:]))

    @contextmanager
    def _adding_up(self, moments: dict[str, Tensor], locations: dict[str, int]) -> Iterator[None]:
        """Inside it every layer adds Σ z zᵀ and how many z there were, of what goes through."""

        def record(name: str, layer: nn.Module, given: tuple[Any, ...]) -> None:
            z = _inputs(layer, given[0], batchnorm=self.settings.batchnorm)
            moment = factors.gram(z)
            moments[name] = moments[name].add_(moment) if name in moments else moment
            locations[name] = locations.get(name, 0) + z.shape[0] * z.shape[-1]

        hooks = [
            layer.register_forward_pre_hook(partial(record, name))
            for name, layer in self.layers.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def rewrite_(self) -> None:
        """Precondition the gradients."""
        for name, layer in self.layers.items():
            weight, bias = cast("nn.Linear", layer).weight, _bias(layer)
            if weight.grad is None or (bias is not None and bias.grad is None):
                continue
            shift = None if bias is None else bias.grad
            matrix = factors.gradient_matrix(weight.grad, shift, groups=_groups(layer))
            result = matrix @ self.inverses[name]
            new_weight, new_shift = factors.split_gradient_matrix(result, weight, bias)
            weight.grad.copy_(new_weight)
            if shift is not None and new_shift is not None:
                shift.copy_(new_shift)
        if not is_capturing(self.context.device):  # then :meth:`replayed` counts
            self.step += 1

    def replayed(self, steps: int) -> None:
        """Count captured steps."""
        self.step += steps

    def state_dict(self) -> dict[str, Tensor]:
        """The preconditioner, and when the next is due."""
        inverses = states.with_prefix("inverses", self.inverses)
        return {**inverses, "step": torch.tensor(self.step), "due": torch.tensor(self._due)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        states.check_names("preconditioner", state, self.state_dict())
        for name, inverse in states.without_prefix("inverses", state).items():
            self.inverses[name].copy_(inverse)
        self.step, self._due = int(state["step"]), int(state["due"])


def _inverses(moments: Mapping[str, Tensor], *, waits: bool) -> dict[str, Tensor]:
    """(I + M)⁻¹ of each M.

    Args:
        moments: Symmetric and positive semi-definite, ``(groups, d, d)``, by the layer's name.
        waits: Look at each result before the next is begun, else at all of them once.

    Raises:
        NumericalError: One has no finite inverse.
    """
    if not waits:
        tried = {name: linalg.try_damped_inverse(m, 1.0) for name, m in moments.items()}
        if not bool(torch.stack([failed for _, failed in tried.values()]).any()):
            return {name: inverse for name, (inverse, _) in tried.items()}
    return {
        name: linalg.damped_inverse(moment, 1.0, name=f"the inputs of layer {name!r}")
        for name, moment in moments.items()
    }


def _covered(model: nn.Module, *, norms: bool) -> dict[str, nn.Module]:
    """The layers to precondition, by name."""
    kinds = (*_MATRICES, *_NORMS) if norms else _MATRICES
    found = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    return {name: layer for name, layer in found.items() if _trains(layer)}


def _trains(layer: nn.Module) -> bool:
    weight = layer._parameters.get("weight")
    if weight is None or not weight.requires_grad:
        return False
    return not isinstance(layer, _NORMS) or layer.running_var is not None


def _bias(layer: nn.Module) -> nn.Parameter | None:
    """The bias of a layer, if there is one to train."""
    bias = layer._parameters.get("bias")
    return bias if bias is not None and bias.requires_grad else None


def _groups(layer: nn.Module) -> int:
    """Parts of a layer that share no input: the groups of a convolution, or all channels."""
    if isinstance(layer, _NORMS):
        return layer.num_features
    return layer.groups if isinstance(layer, (nn.Conv1d, nn.Conv2d)) else 1


def _identity(layer: nn.Module) -> Tensor:
    weight = cast("nn.Linear", layer).weight.detach()
    groups, bias = _groups(layer), int(_bias(layer) is not None)
    size = weight.numel() // weight.shape[0] + bias
    eye = torch.eye(size, dtype=weight.dtype, device=weight.device)
    return eye.repeat(groups, 1, 1)


def _inputs(layer: nn.Module, x: Tensor, *, batchnorm: BatchNormKind) -> Tensor:
    """What the weights of a layer are multiplied with, ``(n, groups, d_in, L)``.

    See :mod:`ocar.curvature.factors` for the layout.
    """
    bias = _bias(layer) is not None
    if isinstance(layer, nn.Linear):
        return factors.linear_inputs(x, bias=bias)
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return factors.conv_inputs(x, layer, bias=bias)
    norm = cast("nn.BatchNorm2d", layer)
    z = factors.normalized_inputs(x, norm).reshape(*x.shape[:2], 1, -1)
    if batchnorm == "variance":
        assert norm.running_var is not None
        z = z / (norm.running_var + norm.eps).sqrt().view(-1, 1, 1)
    return torch.cat([z, torch.ones_like(z)], dim=2) if bias else z
