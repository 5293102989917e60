"""OCM: online continual learning through mutual information maximisation.

Guo, Liu, Zhao, "Online Continual Learning through Mutual Information
Maximization" (ICML 2022). The features should keep all information that separates the
classes, not only the information for the present classes, and the knowledge of an
earlier model. Let l be the pair losses of :mod:`ocar.methods.rotated`, over two views
of all rotations of an image. In the first stretch of the stream

    L = CE(new) + L_new,    L_new = mean_i l_ii' + 2 mean_i mean_{j ~ i} l_ij,

where i' is the other view of i, and j ~ i are the views of the same class and
rotation. Later, with replayed samples and the model from before the current stretch,

    L = CE(replayed) + L_new + mean_i mean_{j ~ i} l_ij + L_previous + MSE.

The third term is over replayed samples. L_previous contrasts their projections with
those of the previous model. MSE is the mean squared difference of the two models'
logits for the classes of earlier stretches. After the first stretch, new samples
enter the cross-entropy only when they are replayed.

This follows the published code: one step of Adam a batch, a reservoir, the
linear head for predictions, and the previous model in train mode. The published
head has all units from the start; here units without a class are masked.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.methods.context import Context, with_inputs
from ocar.methods.contrastive import load_module, mean_over_same, pair_losses, rotations, unit_rows
from ocar.methods.copies import copy_modes_, copy_values_, fit_head_, floating_buffers, mark_units
from ocar.methods.objective import Begun, Forward, Objective, Outcome, Step, sample_losses
from ocar.methods.rotated import Rotated, RotatedSettings, same_class
from ocar.models.check import copy_model
from ocar.state import with_prefix
from ocar.structure import one_tensor


@dataclass(frozen=True, kw_only=True)
class OCMSettings(RotatedSettings):
    """Settings of OCM."""

    name = "OCM"

    lr: float = 1e-3
    """Learning rate α."""

    def make_objective(self, context: Context) -> Objective:
        """The losses of OCM."""
        return MutualInformation(self, context)


class MutualInformation(Rotated[OCMSettings]):
    """Cross-entropy, contrasts, and distillation from the model before the current stretch.

    The previous model's tensors are overwritten in place, except when the head doubles.
    """

    def __init__(self, settings: OCMSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.previous = Previous(context, self.projection)
        self._old = torch.zeros_like(self.head.active)  # units of earlier stretches

    def begin(self, batch: Begun) -> Sequence[float]:
        """Copy the model if a stretch has ended."""
        self._fit()
        if self.stretches.ends_before(batch.units):
            batch.keep([*self.previous.parameters(), *self.previous.buffers(), self._old])
            copy_values_(self.previous.model, self.context.model)
            copy_values_(self.previous.projection, self.projection)
            self._old = mark_units(self._old, self.stretches.units, like=self.head.active)
        copy_modes_(self.previous.model, self.context.model)
        self.stretches.begin(batch.units)
        return ()

    def draws(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Nothing in the first stretch, then a few samples for each class seen."""
        return (self.few(sizes[0]) if self.stretches.ended else 0,)

    def tensors(self) -> Sequence[Tensor]:
        """BatchNorm's statistics of the previous model, which is in train mode."""
        return floating_buffers(self.previous)

    def _fit(self) -> None:
        """Give the previous model the new units of the head."""
        fit_head_(self.previous.head, self.head.layer)
        if (missing := self.head.capacity - len(self._old)) > 0:
            self._old = functional.pad(self._old, (0, missing))

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        x = one_tensor(step.x)
        new, old = x[: step.new], x[step.new :]
        y_new, y_old = step.y[: step.new], step.y[step.new :]
        if not step.replayed:
            loss = self.contrast_new(*self.project(self.views(new), forward), y_new)
            outputs = forward(self.augmented(new))
            loss = loss + sample_losses(outputs, y_new, step.active).mean()
            return Outcome(loss=loss, outputs=None)

        views, old_views = self.views(new), self.views(old)
        u, f = self.project(torch.cat([views, old_views]), forward)
        count = len(views)
        u_old = u[count:]
        loss = self.contrast_new(u[:count], f[:count], y_new)
        loss = loss + self.contrast_old(u_old, f[count:], y_old)

        outputs = forward(self.augmented(old))
        loss = loss + sample_losses(outputs, y_old, step.active).mean()
        with torch.no_grad():
            before, _ = self.previous(rotations(old))
            _, targets = self.previous(self.augmented(old))
        similarity = u_old[: len(before)] @ unit_rows(before).T
        losses = pair_losses(similarity, temperature=self.settings.temperature, itself=True)
        loss = loss + mean_over_same(losses, same_class(y_old, views=1, rows=len(losses)))
        return Outcome(loss=loss + squared_distance(outputs, targets, self._old), outputs=None)

    # Saving

    def state_dict(self) -> dict[str, Tensor]:
        """The shared state, and the previous model with the units of earlier stretches."""
        self._fit()
        own = with_prefix("previous", self.previous.state_dict())
        return super().state_dict() | own | {"old": self._old}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        super().load_state_dict(state)
        self._fit()
        load_module("previous", self.previous, state)
        self._old = state["old"].to(self._old.device, copy=True)


class Previous(nn.Module):
    """A copy of a model and its projection that does not learn."""

    def __init__(self, context: Context, projection: nn.Linear) -> None:
        super().__init__()
        assert context.head is not None
        self.model = copy_model(context.model)
        self.projection = copy.deepcopy(projection)
        self.requires_grad_(False)
        self._head_name = context.head.name

    @property
    def head(self) -> nn.Module:
        """The copy of the head."""
        return self.model.get_submodule(self._head_name)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Projections and outputs for inputs of the model."""
        features, outputs = with_inputs(self.head, self.model, x)
        return self.projection(features), outputs


def squared_distance(outputs: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
    """The mean squared difference over samples and chosen columns; 0 if none is chosen.

    Outputs and targets are ``(n, units)``, ``chosen`` is ``(units,)`` of bool.
    """
    squares = torch.where(chosen, outputs - targets, 0.0).square()
    return squares.sum() / (len(outputs) * chosen.sum().clamp_min(1))
