"""OnPro: online prototype learning.

Wei et al., "Online Prototype Learning for Online Continual Learning" (ICCV 2023).
A prototype is the mean of a class's projections. Prototypes of the same class in
two views should be similar, and prototypes of different classes apart, among new
samples and among replayed samples (online prototype equilibrium):

    L = CE + L_instances + L_prototypes(new) + L_prototypes(replayed),

with L_prototypes of :func:`ocar.methods.contrastive.prototype_loss`, and
L_instances the contrasts of OCM without its previous model. Classes with close
prototypes p are easily confused. So part of the replayed samples is drawn from such
pairs of classes and mixed (adaptive prototypical feedback):

    P(a, b) ∝ exp(1/‖p_a − p_b‖),    x = (1 − λ) x_a + λ x_b,
    CE = (1 − λ) CE(·, y_a) + λ CE(·, y_b).

In the first stretch of the stream the cross-entropy and L_instances are over new
samples; later the cross-entropy is over replayed samples alone. This follows the
published code: one step of Adam a batch, a reservoir, the linear head for
predictions. The published head has all units from the start; here units without a
class are masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ocar.config import require_range
from ocar.methods.context import Context
from ocar.methods.contrastive import prototype_loss
from ocar.methods.objective import Begun, Forward, Objective, Outcome, Step, sample_losses
from ocar.methods.rotated import Rotated, RotatedSettings
from ocar.rng import make_generator
from ocar.structure import one_tensor


@dataclass(frozen=True, kw_only=True)
class OnProSettings(RotatedSettings):
    """Settings of OnPro."""

    name = "OnPro"

    prototype_temperature: float = 0.5
    """Temperature of the contrast of prototypes."""

    similarity_scale: float = 1.0
    """Factor of the similarities of replayed samples."""

    base_rate: float = 0.9
    """Fraction of the replayed samples drawn uniformly; the others come from close classes."""

    mixup: float = 0.2
    """Probability of mixing: applied once to all uniformly drawn samples and again to each of
    them, and once to each pair of classes."""

    mixup_largest: float = 0.6
    """Largest λ of uniformly drawn samples."""

    mixup_alpha: float = 0.4
    """α: for a pair of classes λ is drawn from Beta(α, α)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "in [0, 1]", "base_rate", "mixup", "mixup_largest")
        positive = ("prototype_temperature", "similarity_scale", "mixup_alpha")
        require_range(self, "larger than 0", *positive)

    def make_objective(self, context: Context) -> Objective:
        """The losses of OnPro."""
        return OnlinePrototypes(self, context)


class Mixed(NamedTuple):
    """Mixtures of two samples each."""

    x: Tensor  #: Inputs of the model, ``(n, ...)``.
    first: Tensor  #: Units of the first samples, ``(n,)``.
    second: Tensor  #: Units of the second samples, ``(n,)``.
    share: Tensor  #: λ, the share of the second samples, ``(n,)``.

    @property
    def labels(self) -> Tensor:
        """(1 − λ) y_a + λ y_b: a mixture of two classes is a class of its own."""
        return torch.lerp(self.first.double(), self.second.double(), self.share.double())

    def entropy(self, outputs: Tensor, active: Tensor | None) -> Tensor:
        """The mean cross-entropy with both units, by their shares."""
        first = sample_losses(outputs, self.first, active)
        return torch.lerp(first, sample_losses(outputs, self.second, active), self.share).mean()


class OnlinePrototypes(Rotated[OnProSettings]):
    """Cross-entropy, contrasts of instances and of prototypes, and feedback from them."""

    recordable = False  # the host reads the prototypes to choose the replayed samples

    def __init__(self, settings: OnProSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.prototypes = self.projection.weight.detach().new_zeros(0, len(self.projection.weight))
        """Of the classes in the last draw from memory, ``(units, p)``; zero for other classes."""
        self._host = make_generator(settings.seed, "OnPro/feedback")
        self._first_batch = False  # of a stretch

    def begin(self, batch: Begun) -> Sequence[float]:
        """Count the stretches of the stream."""
        self._first_batch = self.stretches.ends_before(batch.units)
        self.stretches.begin(batch.units)
        return ()

    def draws(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """After the first stretch, a few samples for each class seen."""
        return (self.few(sizes[0]) if self.stretches.ended else sizes[0],)

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """The loss of one step."""
        x = one_tensor(step.x)
        new, y_new = x[: step.new], step.y[: step.new]
        old, y_old = x[step.new :], step.y[step.new :]
        mixed = self._replayed(old, y_old) if step.replayed and self.stretches.ended else None

        views = self.views(new)
        both = views if mixed is None else torch.cat([views, self.views(mixed.x)])
        u, f = self.project(both, forward)
        count = len(views)
        loss = self.contrast_new(u[:count], f[:count], y_new)
        if mixed is None:
            outputs = forward(self.augmented(new))
            loss = loss + sample_losses(outputs, y_new, step.active).mean()
        else:
            scale = self.settings.similarity_scale
            loss = loss + self.contrast_old(u[count:], f[count:], mixed.labels, scale=scale)
            loss = loss + mixed.entropy(forward(self.augmented(mixed.x)), step.active)

        n, half = step.new, count // 2  # the first samples of each view are not turned
        loss = loss + self._equilibrium(u[:n], u[half : half + n], y_new)[0]
        if step.replayed:
            u_old, _ = self.project(torch.cat([old, self.augmented(old)]), forward)
            first, second = u_old.chunk(2)
            seen, prototypes = self._equilibrium(first, second, y_old)
            loss = loss + seen
            finite = prototypes.isfinite().all(1, keepdim=True)  # the guard does not restore them
            self.prototypes = torch.where(finite, prototypes.detach(), 0.0)
        return Outcome(loss=loss, outputs=None)

    def _equilibrium(self, first: Tensor, second: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        temperature = self.settings.prototype_temperature
        return prototype_loss(first, second, y, classes=self.head.capacity, temperature=temperature)

    # Adaptive prototypical feedback

    @torch.no_grad()
    def _replayed(self, x: Tensor, y: Tensor) -> Mixed:
        """The samples to replay instead of a uniform draw from memory."""
        pairs, probabilities = close_pairs(self.prototypes)
        if self._first_batch or not len(pairs):
            return Mixed(x, y, y, x.new_zeros(len(x)))
        n = len(x)
        base = int(n * self.settings.base_rate)
        chosen = torch.randperm(n, generator=self._host)[:base].to(x.device)
        parts = [self._mix_uniform(x[chosen], y[chosen])]
        counts = share_out(probabilities, n - base, generator=self._host)
        parts += [
            self._mix_pair(pair, count)
            for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
            if count
        ]
        return Mixed(*map(torch.cat, zip(*parts, strict=True)))

    def _mix_uniform(self, x: Tensor, y: Tensor) -> Mixed:
        """The samples, some of them mixed with others."""
        n, rate = len(x), self.settings.mixup
        once, *each = torch.rand(1 + n, generator=self._host).tolist()
        share = torch.rand(n, generator=self._host) * self.settings.mixup_largest
        share *= torch.tensor([once < rate and value < rate for value in each])
        partner = torch.randperm(n, generator=self._host).to(x.device)
        return mix(x, x[partner], y, y[partner], share)

    def _mix_pair(self, pair: Sequence[int], count: int) -> Mixed:
        """Mixtures of two classes, drawn from the whole memory with replacement."""
        memory = self.context.memory
        slots, labels = memory.slots, memory.labels
        held = labels.unique()
        rows = []
        for unit in pair:
            if not (labels == unit).any():  # no longer in memory: any other class
                unit = int(held[torch.randint(len(held), (), generator=self._host)])
            own = slots[labels == unit]
            rows.append(own[torch.randint(len(own), (count,), generator=self._host)])
        share = torch.zeros(count)
        if torch.rand((), generator=self._host) < self.settings.mixup:
            concentration = torch.full((count, 2), self.settings.mixup_alpha)
            gammas = torch._standard_gamma(concentration, generator=self._host)
            share = gammas[:, 0] / gammas.sum(1)
        first, second = (memory.gather(chosen) for chosen in rows)
        x_first, x_second = (
            one_tensor(self.context.normalize(batch.x)) for batch in (first, second)
        )
        return mix(x_first, x_second, first.y, second.y, share)

    # Saving

    def state_dict(self) -> dict[str, Tensor]:
        """The shared state, the prototypes, and the generator of the feedback."""
        own = {"prototypes": self.prototypes, "host": self._host.get_state()}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        super().load_state_dict(state)
        self.prototypes = state["prototypes"].to(self.prototypes, copy=True)
        self._host.set_state(state["host"])


def mix(x_a: Tensor, x_b: Tensor, y_a: Tensor, y_b: Tensor, share: Tensor) -> Mixed:
    """(1 − λ) x_a + λ x_b, with λ the ``share``, ``(n,)`` on the host."""
    share = share.to(x_a)
    weight = share.view(-1, *[1] * (x_a.dim() - 1))
    return Mixed((1 - weight) * x_a + weight * x_b, y_a, y_b, share)


def close_pairs(prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of units a < b with a prototype, ``(pairs, 2)``, and the softmax of 1/‖p_a − p_b‖.

    The prototypes are ``(units, p)``, zero for units without one; the results are on the host.
    """
    points = prototypes.double().cpu()
    units = points.abs().sum(1).nonzero().flatten()
    places = torch.combinations(torch.arange(len(units)))
    distances = functional.pdist(points[units]) if len(units) > 1 else points.new_zeros(0)
    return units[places], (1 / distances.clamp_min(1e-12)).softmax(0)


def share_out(probabilities: Tensor, total: int, *, generator: torch.Generator) -> Tensor:
    """Counts in proportion to probabilities, rounded, then corrected at random to the total.

    Probabilities and counts are ``(n,)``, n at least 1; the generator is on the host.
    """
    counts = (probabilities * total).round().long()
    while (missing := total - int(counts.sum())) != 0:
        places = torch.arange(len(counts)) if missing > 0 else counts.nonzero().flatten()
        order = torch.randperm(len(places), generator=generator)[: abs(missing)]
        counts[places[order]] += 1 if missing > 0 else -1
    return counts
