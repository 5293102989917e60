"""Slow weights: a copy of the model that follows it, teaches it, and predicts with it.

After every stream batch the slow weights θ' move towards the weights θ that learn,

    θ' ← θ' + ρ (θ − θ'),    ρ = max(rate, c / (b + c)),

with b stream batches seen so far; so do the running statistics of BatchNorm. Any method can have
slow weights. They can predict instead of the weights, or with them: the mean of both models'
probabilities. They can be a teacher, see :mod:`ocar.methods.distillation`.

The mean teacher of Tarvainen & Valpola (NeurIPS 2017) is such a copy. For online continual learning
see Soutif-Cormerais et al., "Improving Online Continual Learning Performance and Stability with
Temporal Ensembles" (CoLLAs 2023), who predict with the slow weights, and Michel et al., "Rethinking
Momentum Knowledge Distillation in Online Continual Learning" (ICML 2024), who also distil them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch
from torch import Tensor, nn

from ocar.methods.settings import LearnerSettings
from ocar.models.check import copy_model
from ocar.state import check_names
from ocar.structure import Inputs, call_with, named_tensors


class SlowWeights:
    """Follows the trainable weights of a model and, unless they are shared, its statistics.

    Args:
        model: The model.
        settings: Whether there are slow weights, and how they follow.

    Attributes:
        values: The slow form of each tensor that is followed, by name; at least in float32, in
            which small moves are not rounded away.
    """

    def __init__(self, model: nn.Module, settings: LearnerSettings) -> None:
        self.model = model
        self.settings = settings
        saved = set() if settings.slow_shares else model.state_dict().keys()
        self._statistics = [
            n for n, b in model.named_buffers() if b.is_floating_point() and n in saved
        ]
        self.values = {name: _precise(t) for name, t in self._followed(()).items()}
        # A module of its own, since the curvature records the calls of the model.
        self._teacher: nn.Module | None = None
        if settings.distillation:
            self._teacher = copy_model(model).eval().requires_grad_(False)

    def _followed(self, names: Container[str]) -> dict[str, Tensor]:
        """What is followed: parameters that learn or, now frozen, have these names; statistics."""
        if not self.settings.has_slow:
            return {}
        followed: dict[str, Tensor] = {
            n: p for n, p in self.model.named_parameters() if p.requires_grad or n in names
        }
        if self._statistics:
            buffers = dict(self.model.named_buffers())
            followed |= {name: buffers[name] for name in self._statistics}
        return followed

    @torch.no_grad()
    def fit(self) -> None:
        """Make room for new units of the head, and for parameters that are no longer frozen.

        Their slow form starts at their own weights.
        """
        for name, tensor in self._followed(self.values).items():
            if name not in self.values:
                self.values[name] = _precise(tensor)
            slow = self.values[name]
            if slow.shape != tensor.shape:
                grown = _precise(tensor)
                grown[: slow.shape[0]] = slow
                self.values[name] = grown

    @torch.no_grad()
    def follow(self, rate: Tensor) -> None:
        """Move towards the weights; a scalar in [0, 1] says how much of the way."""
        followed = self._followed(self.values)
        slow = [self.values[name] for name in followed]
        way = torch._foreach_sub([t.detach() for t in followed.values()], slow)
        torch._foreach_mul_(way, rate.to(slow[0].dtype))
        torch._foreach_add_(slow, way)

    def tensors(self) -> list[Tensor]:
        """Everything that :meth:`follow` changes in place."""
        return list(self.values.values())

    def weights(self) -> dict[str, Tensor]:
        """All parameters and buffers of the model, with the slow ones in place of theirs."""
        tensors = named_tensors(self.model)
        return tensors | {n: slow.to(tensors[n].dtype) for n, slow in self.values.items()}

    @torch.no_grad()
    def teach(self, x: Inputs) -> Tensor:
        """Outputs for inputs of the model in eval mode, without a call of the model."""
        assert self._teacher is not None
        return call_with(self._teacher, self.weights(), x)

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Take saved slow weights; a ``CheckpointError`` if they are of another model."""
        followed = self._followed(values)
        check_names("slow weights", values, followed)
        # Predictions on a GPU copy from the same tensors again and again.
        own = self.values
        self.values = {n: own[n] if n in own else _precise(t) for n, t in followed.items()}
        self.fit()  # the head may have grown
        for name, slow in self.values.items():
            slow.copy_(values[name])


def _precise(tensor: Tensor) -> Tensor:
    """A copy in float32, or in the type of the tensor if that is float64."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
