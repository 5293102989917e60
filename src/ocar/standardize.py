"""The scale of inputs and targets, followed online.

Each feature has the mean m and the standard deviation s of all samples so far; it becomes
(x − m) / s. Chan, Golub & LeVeque, "Algorithms for Computing the Sample Variance" (1983), join the
moments of a batch b to those of the n samples before, with D the sum of squared deviations:

    m ← m + δ n_b / (n + n_b),   D ← D + D_b + δ² n n_b / (n + n_b),   δ = m_b − m.

All samples weigh the same, so the scale settles. A feature that has not varied yet is 0: it has no
scale, and no weight has been learned for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from ocar.errors import CheckpointError
from ocar.structure import Inputs, from_parts, parts_of

CONSTANT = 1e-9
"""A feature that deviates from its mean by less than this share of it has not varied."""

_ROWS = 4

Keep = Callable[[Sequence[Tensor], Sequence[int]], object]
"""Copies rows of tensors that are about to be changed in place, see ``Undo.keep``."""


class RunningScale:
    """Mean and standard deviation of all samples so far.

    Samples ``(n, d)`` have those of each of d features, images ``(n, c, h, w)`` those of each
    channel, and other samples those of all their numbers.

    Attributes:
        values: None before the first sample, then ``(4, *shape)`` in float64: the count of
            numbers, their mean, their sum of squared deviations and their standard deviation, 0 if
            they have not varied. It is changed in place, since recorded steps read it.
    """

    def __init__(self) -> None:
        self.values: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Standardise samples, in float64; unchanged before the first."""
        if self.values is None:
            return x
        _, mean, _, std = self.values
        return (x - mean) / torch.where(std > 0, std, torch.inf)

    def invert(self, x: Tensor) -> Tensor:
        """From standardised samples to those before, in the same type."""
        return x if self.values is None else (x * self.values[3] + self.values[1]).to(x.dtype)

    @torch.no_grad()
    def update(self, x: Tensor, keep: Keep) -> None:
        """Take samples ``(n, ...)``, on the device of the statistics, into these.

        ``keep`` is called before the statistics change.
        """
        if self.values is None:
            self.values = x.new_zeros(_shape(x.shape[1:]), dtype=torch.float64)
        keep([self.values], range(_ROWS))
        count, mean, deviations, std = self.values
        dims = [0, *(d + 1 for d, size in enumerate(mean.shape) if size != x.shape[d + 1])]
        x = x.double()
        own = x.mean(dims, keepdim=True)
        own_deviations = (x - own).square_().sum(dims, keepdim=True)[0]
        new = x.numel() / mean.numel()
        total, delta = count + new, own[0] - mean
        deviations += own_deviations + delta.square() * count * (new / total)
        mean += delta * (new / total)
        count.copy_(total)
        found = (deviations / count).sqrt_()
        std.copy_(torch.where(found > CONSTANT * mean.abs(), found, 0.0))

    def copy_(self, other: RunningScale) -> None:
        """Take over the statistics of another one, in place where there are some."""
        if self.values is None or other.values is None:
            self.values = None if other.values is None else other.values.clone()
        else:
            self.values.copy_(other.values)


class InputScale:
    """The running scale of each part of the samples that is standardised.

    Attributes:
        parts: By the name of the part, "" for samples that are one tensor.
    """

    def __init__(self) -> None:
        self.parts: dict[str, RunningScale] = {}

    def __call__(self, x: Inputs) -> Inputs:
        """Standardise samples, in float64; parts that are not standardised are unchanged."""
        if not self.parts:
            return x
        scales = self.parts
        return from_parts({n: scales[n](p) if n in scales else p for n, p in parts_of(x).items()})

    def update(self, x: Inputs, names: Collection[str], keep: Keep) -> None:
        """Take some parts of samples into the statistics; see :meth:`RunningScale.update`."""
        for name, part in parts_of(x).items():
            if name in names:
                self.parts.setdefault(name, RunningScale()).update(part, keep)

    def copy_(self, other: InputScale) -> None:
        """Take over the statistics of another one, in place where there are some."""
        self.parts = {name: self.parts.get(name, RunningScale()) for name in other.parts}
        for name, scale in other.parts.items():
            self.parts[name].copy_(scale)


def load_scale(
    name: str, state: Mapping[str, Tensor], sample: torch.Size | None, device: torch.device
) -> Tensor | None:
    """The statistics in a checkpoint by name, :attr:`RunningScale.values`.

    None if ``sample``, the shape of a sample, is None.

    Raises:
        CheckpointError: They are missing, or of other samples.
    """
    given = state.get(name)
    if sample is None:
        return None
    if given is None:
        raise CheckpointError(
            f"The checkpoint has no mean and variance of the {name}: it is of a learner that did "
            "not standardise them. Make the learner with standardize=False."
        )
    if given.shape != _shape(sample) or given.dtype != torch.float64:
        raise CheckpointError(
            f"The checkpoint has the mean and variance of other {name}: {given.dtype} of shape "
            f"{tuple(given.shape)}. Must be float64 of shape {_shape(sample)}."
        )
    return given.to(device, copy=True)


def _shape(sample: torch.Size) -> tuple[int, ...]:
    """Shape of the statistics of samples of a shape; they broadcast against a sample."""
    kept = sample[:1] if len(sample) in (0, 1, 3) else [1]
    return (_ROWS, *kept, *[1] * (len(sample) - 1))
