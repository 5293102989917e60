"""The guard where looking at a number costs nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ocar.guard.base import BatchGuard, Verdict
from ocar.guard.settings import Guard, GuardCounts
from ocar.methods.context import Context


class HostGuard(BatchGuard):
    """The guard of a learner on a CPU.

    Args:
        settings: When to back off.
        context: The parts of the learner.
        bounded: Whether the steps are such as have a bound on what they may change.
    """

    def __init__(self, settings: Guard, context: Context, *, bounded: bool) -> None:
        super().__init__(settings, context, bounded=bounded)
        self._counts = GuardCounts()
        self._largest_square = 0.0
        self._accepted = True
        self._is_copies = False

    @property
    def accepted(self) -> bool:
        """Whether the last batch was not skipped."""
        return self._accepted

    def trust(self, x: Tensor) -> bool:
        """Whether the inputs of a new batch are of a sane size."""
        self._is_copies = not self.settings.copies and _are_same(x)
        if self.settings.scale is None or not x.is_floating_point():  # 8 bits have one scale
            return True
        flat = self.context.normalize(x).reshape(-1)
        square = float(flat @ flat) / max(1, flat.numel())
        most = self.settings.scale**2 * max(1.0, self._largest_square)
        first = self._largest_square == 0 and math.isfinite(square)
        if not (square <= most or first):
            return False
        self._largest_square = max(self._largest_square, square)
        return True

    def refuse(self, trusted: Verdict) -> None:
        """A batch is not learned from, so there is nothing to take back."""
        self._accepted = bool(trusted)
        if not trusted:
            self._count(out_of_scale=1)

    def settle(self, loss: Tensor, trusted: Tensor) -> None:
        """The steps on a batch are done: let them stand, shorten them or take them back."""
        assert self._kept is not None
        measured = self._change.divergence()
        kl = 0.0 if measured is None else float(measured)
        if not math.isfinite(float(loss) + float(self._kept.sum()) + kl):
            self.take_back()
            return
        self._accepted = True
        if self._counts.in_a_row or kl > self._counts.largest_kl:
            largest = max(kl, self._counts.largest_kl)
            self._counts = replace(self._counts, in_a_row=0, largest_kl=largest)
        if self.bound is not None and kl > self.bound:
            self._kept.settle_(torch.tensor(True), torch.tensor(self.bound / kl))
            self._count(shortened=1)
        self._kept = None

    def take_back(self) -> None:
        """The steps on a batch broke off: everything becomes what it was before."""
        assert self._kept is not None
        self._accepted = False
        self._kept.settle_(torch.tensor(False))
        self._kept = None
        self._count(not_finite=1, in_a_row=1)

    def may_remember(self, accepted: Verdict) -> bool:
        """Whether the batch that :meth:`trust` saw last is worth a place in the memory."""
        if accepted and self._is_copies:
            self._count(copies=1)
        return bool(accepted) and not self._is_copies

    def counts(self) -> GuardCounts:
        """What was done so far."""
        return self._counts

    def state_dict(self) -> dict[str, Tensor]:
        """The counts and the scale of the inputs."""
        counts = self._counts
        numbers = (counts.not_finite, counts.out_of_scale, counts.shortened, counts.copies)
        return {
            "counts": torch.tensor([*numbers, counts.in_a_row]),
            "largest_kl": torch.tensor(counts.largest_kl),
            "largest_square": torch.tensor(self._largest_square, dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave; nothing if there is none of it."""
        if state:
            names = ("not_finite", "out_of_scale", "shortened", "copies", "in_a_row")
            counts = dict(zip(names, state["counts"].tolist(), strict=True))
            self._counts = GuardCounts(**counts, largest_kl=float(state["largest_kl"]))
            self._largest_square = float(state["largest_square"])

    def _count(self, **more: int) -> None:
        counts = {name: getattr(self._counts, name) + by for name, by in more.items()}
        self._counts = replace(self._counts, **counts)
        self._warn(self._counts)


def _are_same(x: Tensor) -> bool:
    """Whether there is more than one sample, and all are the same."""
    return len(x) > 1 and torch.equal(x[0], x[1]) and bool((x == x[:1]).all())
