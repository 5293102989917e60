"""OCM: online continual learning through mutual information maximisation.

Guo, Liu, Zhao, "Online Continual Learning through Mutual Information
Maximization" (ICML 2022). Features shall keep all that tells the classes apart,
not only what the classes of the moment need, and what an earlier model knew. With
the similarities and pair losses l of :mod:`ocar.methods.rotated`, over two views
of all ways to turn an image, in the first stretch of the stream

    L = CE(new) + L_new,    L_new = mean_i l_ii' + 2 mean_i mean_{j ~ i} l_ij,

with i' the other view of i and j ~ i the views of the same class and way, and
later, with replayed samples and the model before the current stretch,

    L = CE(replayed) + L_new + mean_i mean_{j ~ i} l_ij + L_previous + MSE.

The third term is of replayed samples, L_previous of their projections compared
with those of the previous model, and MSE the mean squared difference of the two
models' logits for the classes of earlier stretches. After the first stretch new
samples are in the cross-entropy only once they are replayed.

This follows the published code: one step of Adam a batch, a reservoir, the
linear head for predictions, and the previous model in train mode. There the head
has all units from the start; here those that stand for no class yet are masked.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ocar.methods.context import Context
from ocar.methods.contrastive import mean_over_same, pair_losses, rotations, unit_rows
from ocar.methods.objective import Begun, Forward, Objective, Outcome, Step
from ocar.methods.rotated import Rotated, RotatedSettings, entropies, same_class
from ocar.state import check_names, with_prefix, without_prefix


@dataclass(frozen=True, kw_only=True)
class OCMSettings(RotatedSettings):
    """Settings of OCM."""

    name = "OCM"

    lr: float = 1e-3
    """Learning rate α."""

    def make_objective(self, context: Context) -> Objective:
        """The losses of OCM."""
        return MutualInformation(self, context)


class MutualInformation(Rotated):
    """Cross-entropy, contrasts, and distillation from the model before the current stretch.

    The previous model's tensors are only ever overwritten, except when the head doubles.

    Args:
        settings: The settings.
        context: The parts of the learner.
    """

    def __init__(self, settings: OCMSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.settings = settings
        self.previous = Previous(context, self.projection)
        self._old = torch.zeros_like(self.head.active)  # units of earlier stretches

    def begin(self, batch: Begun) -> Sequence[float]:
        """Copy the model where a stretch has ended."""
        self._fit()
        if self.stretches.ends_before(batch.units):
            self.previous.copy_(self.context.model, self.projection)
            old = torch.tensor(self.stretches.units, dtype=torch.int64)
            self._old.zero_().index_fill_(0, old.to(self._old.device), True)
        self.previous.train_like_(self.context.model)
        self.stretches.begin(batch.units)
        return ()

    def draws(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Nothing in the first stretch, then some samples for each class seen."""
        return (self.few(sizes[0]) if self.stretches.ended else 0,)

    def _fit(self) -> None:
        """Give the previous model the units that the head has gained."""
        self.previous.fit_(self.head.layer)
        if self._old.shape != self.head.active.shape:
            grown = torch.zeros_like(self.head.active)
            grown[: len(self._old)] = self._old
            self._old = grown

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        assert step.active is not None
        new, old = step.x[: step.new], step.x[step.new :]
        y_new, y_old = step.y[: step.new], step.y[step.new :]
        if not step.replayed:
            loss = self.contrast_new(*self.project(self.views(new), forward), y_new)
            outputs = forward(self.augmented(new))
            loss = loss + entropies(outputs, y_new, step.active).mean()
            return Outcome(loss=loss, outputs=None)

        views, old_views = self.views(new), self.views(old)
        u, f = self.project(torch.cat([views, old_views]), forward)
        count = len(views)
        u_old = u[count:]
        loss = self.contrast_new(u[:count], f[:count], y_new)
        loss = loss + self.contrast_old(u_old, f[count:], y_old)

        outputs = forward(self.augmented(old))
        loss = loss + entropies(outputs, y_old, step.active).mean()
        with torch.no_grad():
            before, _ = self.previous(rotations(old))
            _, targets = self.previous(self.augmented(old))
        losses = pair_losses(
            u_old[: len(before)] @ unit_rows(before).T,
            temperature=self.settings.temperature,
            itself=True,
        )
        loss = loss + mean_over_same(losses, same_class(y_old, views=1, rows=len(losses)))
        return Outcome(loss=loss + squared_distance(outputs, targets, self._old), outputs=None)

    # Saving

    def state_dict(self) -> dict[str, Tensor]:
        """What is shared, and the previous model with the units that it knows."""
        self._fit()
        own = with_prefix("previous", self.previous.state_dict())
        return super().state_dict() | own | {"old": self._old}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            CheckpointError: The state is of another model.
        """
        super().load_state_dict(state)
        self._fit()
        previous = without_prefix("previous", state)
        check_names("previous model", previous, self.previous.state_dict())
        self.previous.load_state_dict(previous)
        self._old = state["old"].to(self._old.device, copy=True)


class Previous(nn.Module):
    """A copy of a model and its projection, which does not learn.

    Args:
        context: The parts of the learner.
        projection: What is applied to the features.
    """

    def __init__(self, context: Context, projection: nn.Linear) -> None:
        super().__init__()
        assert context.head is not None
        self.model = copy.deepcopy(context.model)
        self.projection = copy.deepcopy(projection)
        self.requires_grad_(False)
        self._head_name = context.head.name

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Projections and outputs for inputs of the model."""
        found: list[Tensor] = []

        def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            found.append(inputs[0])

        handle = self.model.get_submodule(self._head_name).register_forward_pre_hook(record)
        try:
            outputs = self.model(x)
        finally:
            handle.remove()
        return self.projection(found[0]), outputs

    @torch.no_grad()
    def copy_(self, model: nn.Module, projection: nn.Module) -> None:
        """Take over all values."""
        for mine, theirs in ((self.model, model), (self.projection, projection)):
            for name, tensor in theirs.state_dict().items():
                mine.state_dict()[name].copy_(tensor)

    def fit_(self, head: nn.Linear) -> None:
        """Give the head as many units as another has, the new ones with its weights."""
        layer = self.model.get_submodule(self._head_name)
        for mine, theirs in zip(layer.parameters(), head.parameters(), strict=True):
            if mine.shape != theirs.shape:
                grown = theirs.detach().clone()
                grown[: mine.shape[0]] = mine
                mine.data = grown

    def train_like_(self, model: nn.Module) -> None:
        """Put each part in the mode that it has in the model."""
        for mine, theirs in zip(self.model.modules(), model.modules(), strict=True):
            mine.training = theirs.training


def squared_distance(outputs: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
    """The mean squared difference over samples and chosen columns; 0 where none is chosen.

    Args:
        outputs: ``(n, units)``.
        targets: ``(n, units)``.
        chosen: Which columns, ``(units,)`` of bool.
    """
    squares = torch.where(chosen, outputs - targets, 0.0).square()
    return squares.sum() / (len(outputs) * chosen.sum().clamp_min(1))
