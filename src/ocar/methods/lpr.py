"""LPR: Layerwise Proximal Replay.

Yoo et al., "Layerwise Proximal Replay: A Proximal Point Method for Online
Continual Learning" (ICML 2024). The gradient G of each layer, one row an output
and one column an input, is multiplied with

    (I + ω₀/c · 1/N Σ_n Σ_l z zᵀ)⁻¹,    c = L^β,

with z the layer's input for the N samples of the memory at each of its L
locations, and a 1 for the bias. This is the step under a proximal term
ω₀/c · E‖ΔW z‖². The layer moves freely in directions without inputs from the
memory, and slowly where its outputs on the memory would change. With ω₀ = 0 the
gradient is unchanged.

The matrices are renewed every ``refresh_every`` gradient steps from the augmented
memory, with the model in eval mode. A normalisation layer has a 2 × 2 matrix for
each channel, of its normalised input and 1. The code behind the published tables
divides the layer's input by the variance; division by the standard deviation, as
in the layer itself, is an option.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ocar import accel
from ocar import state as states
from ocar.accel import linalg
from ocar.config import require, require_range
from ocar.curvature.layers import MatrixLayer, NormLayer, make_layer
from ocar.errors import ModelError
from ocar.methods.context import Context
from ocar.methods.objective import Begun, Objective
from ocar.methods.transform import Transform, TransformSettings
from ocar.structure import first_input, parts_of

PIXELS = 2**18
"""Most locations in one forward pass over the memory, which has at least 100 samples."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, kw_only=True)
class LPRSettings(TransformSettings):
    """Settings of the proximal gradient, for any objective."""

    omega0: float = 1.0
    """ω₀: weight of the proximal term; 0 for none."""

    omega_power: float = 1.0
    """β: a layer with L locations a sample has the weight ω₀ / L^β."""

    refresh_every: int = 1
    """Gradient steps between two renewals of the matrices, at the beginning of a stream batch."""

    refresh_samples: int | None = None
    """Samples of the memory for the matrices; None for all."""

    batchnorm: Literal["variance", "deviation", "plain"] = "variance"
    """Input of a BatchNorm layer's scale: centred and divided by the variance (the authors' code),
    by its root (``"deviation"``, as the layer does), or ``"plain"`` for an unchanged gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 0", "omega0")
        require_range(self, "at least 1", "refresh_every")
        require("omega_power", self.omega_power, math.isfinite(self.omega_power), "a number")
        require_range(self, "at least 1", "refresh_samples", none="or None for all")

    def make(self, context: Context, objective: Objective) -> Transform:
        """The proximal transform for a learner."""
        return Transform() if self.omega0 == 0 else LPRTransform(self, context)


class LPRTransform(Transform):
    """Preconditions each layer by its inputs on the memory."""

    has_layers = True

    def __init__(self, settings: LPRSettings, context: Context) -> None:
        self.settings = settings
        self.context = context
        self.layers = _covered(context.model, norms=settings.batchnorm != "plain")
        _reject_shared_parameters({name: layer.module for name, layer in self.layers.items()})
        self.inverses = {name: _identity(layer) for name, layer in self.layers.items()}
        """The preconditioner of each layer, ``(groups, d_in, d_in)``, changed in place."""
        self._due = 0

    def begin(self, batch: Begun) -> Sequence[float]:
        """Renew the preconditioner if it is due and the memory is not empty."""
        if batch.step >= self._due:
            every = self.settings.refresh_every
            self._due = (batch.step // every + 1) * every
            if len(self.context.memory):
                batch.keep(self.inverses.values())
                self.refresh()
        return ()

    def refresh(self) -> None:
        """Renew the preconditioner from the present memory."""
        memory, wanted = self.context.memory, self.settings.refresh_samples
        slots = memory.draw(len(memory) if wanted is None else wanted)
        moments: dict[str, Tensor] = {}
        locations: dict[str, int] = {}

        def add_up(name: str, layer: nn.Module, *given: Any) -> None:
            z = self._inputs(self.layers[name], first_input(*given))
            z = z.to(torch.promote_types(z.dtype, torch.float32))  # to invert 16 bits is impossible
            moment = z.new_empty(z.shape[1], z.shape[2], z.shape[2])
            accel.gram([lambda: z], [1.0], [moment])  # z zᵀ
            moments[name] = moments[name].add_(moment) if name in moments else moment
            locations[name] = locations.get(name, 0) + z.shape[0] * z.shape[-1]

        parts = parts_of(memory.gather(slots[:1]).x).values()
        area = max(math.prod(part.shape[2:]) for part in parts)
        with self.context.evaluating(), ExitStack() as hooks:
            for name, layer in self.layers.items():
                record = partial(add_up, name)
                hook = layer.module.register_forward_pre_hook(record, with_kwargs=True)
                hooks.enter_context(hook)
            for chunk in slots.split(max(100, PIXELS // area)):
                raw = memory.gather(chunk).x
                self.context.forward(self.context.normalize(self.context.augment(raw)))
        for name, moment in moments.items():
            count = locations[name] / len(slots)
            moment *= self.settings.omega0 / count**self.settings.omega_power / len(slots)
            about = f"the inputs of layer {name!r}"
            self.inverses[name].copy_(linalg.guarded_inverse(moment, 1.0, name=about))

    def _inputs(self, layer: MatrixLayer | NormLayer, x: Tensor) -> Tensor:
        """The inputs z that a layer multiplies with its weights, ``(n, groups, d_in, L)``."""
        if isinstance(layer, MatrixLayer):
            return layer.inputs(x)
        norm = cast("nn.BatchNorm2d", layer.module)
        z = layer.normalized(x).reshape(*x.shape[:2], 1, -1)
        if self.settings.batchnorm == "variance":
            assert norm.running_var is not None
            z = z / (norm.running_var + norm.eps).sqrt().view(-1, 1, 1)
        return torch.cat([z, torch.ones_like(z)], dim=2) if layer.trains("bias") else z

    @torch.no_grad()
    def rewrite_(self) -> None:
        """Precondition the gradients."""
        for name, layer in self.layers.items():
            if not layer.has_gradient:
                continue
            if isinstance(layer, MatrixLayer):
                layer.replace_gradient(layer.gradient() @ self.inverses[name])
            else:
                grads = [cast("Tensor", p.grad) for p in layer.parameters]
                matrix = torch.stack(grads, dim=-1).unsqueeze(1) @ self.inverses[name]
                for grad, new in zip(grads, matrix.squeeze(1).unbind(-1), strict=True):
                    grad.copy_(new)

    def state_dict(self) -> dict[str, Tensor]:
        """The preconditioner, and when the next is due."""
        return {**states.with_prefix("inverses", self._saved()), "due": torch.tensor(self._due)}

    def _saved(self, *, back: bool = False) -> dict[str, Tensor]:
        return {
            name: layer.to_saved(self.inverses[name], back=back)
            if isinstance(layer, MatrixLayer)
            else self.inverses[name]
            for name, layer in self.layers.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        states.check_names("preconditioner", state, self.state_dict())
        for name, inverse in states.without_prefix("inverses", state).items():
            self.inverses[name].copy_(inverse)
        for name, inverse in self._saved(back=True).items():
            self.inverses[name].copy_(inverse)
        self._due = int(state["due"])


def _reject_shared_parameters(layers: Mapping[str, nn.Module]) -> None:
    """Raise a ``ModelError`` if two layers share a parameter."""
    owners: dict[int, str] = {}
    for name, layer in layers.items():
        for parameter in layer.parameters(recurse=False):
            other = owners.setdefault(id(parameter), name)
            if other != name:
                raise ModelError(
                    f"Layers {other!r} and {name!r} share a parameter, which LPR "
                    "cannot precondition. Untie them, or use another method."
                )


def _covered(model: nn.Module, *, norms: bool) -> dict[str, MatrixLayer | NormLayer]:
    """The layers to precondition, by name."""
    found: dict[str, MatrixLayer | NormLayer] = {}
    for name, module in model.named_modules():
        layer = make_layer(name, module)
        tracks = isinstance(module, _NORMS) and module.running_var is not None
        if layer is None or layer.by_function:  # calls of the module do not show its inputs
            continue
        if isinstance(layer, MatrixLayer) or (isinstance(layer, NormLayer) and norms and tracks):
            found[name] = layer
    return found


def _identity(layer: MatrixLayer | NormLayer) -> Tensor:
    weight = layer.parameters[0].detach()
    if isinstance(layer, MatrixLayer):
        groups, size = layer.groups, layer.d_in
    else:
        groups, size = weight.numel(), len(layer.parameters)
    return torch.eye(size, dtype=weight.dtype, device=weight.device).repeat(groups, 1, 1)
