"""The guard where nothing may wait: all is decided on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ocar.accel.snapshot import TableKept, Tables, remembers
from ocar.accel.streams import beside
from ocar.guard.base import BatchGuard, Verdict
from ocar.guard.kept import Kept
from ocar.guard.settings import Guard, GuardCounts
from ocar.methods.context import Context


class DeviceGuard(BatchGuard):
    """The guard of a learner on a GPU.

    Args:
        settings: When to back off.
        context: The parts of the learner.
        bounded: Whether the steps are such as have a bound on what they may change.
    """

    def __init__(self, settings: Guard, context: Context, *, bounded: bool) -> None:
        super().__init__(settings, context, bounded=bounded)
        # Changed in place, for a captured graph to find them there.
        self._counts = torch.zeros(5, dtype=torch.int64, device=context.device)
        self._largest_kl = torch.zeros((), device=context.device)
        self._largest_square = torch.zeros((), dtype=torch.float64, device=context.device)
        self._bound: Tensor | None = None
        if self.bound is not None:
            self._bound = torch.tensor(self.bound, dtype=torch.float32, device=context.device)
        self._yes = torch.ones((), dtype=torch.bool, device=context.device)
        self._accepted = self._yes.clone()
        self._new: Tensor | None = None
        self._skipped = 0
        self._tables = Tables(context.device)

    @property
    def accepted(self) -> Tensor:
        """Whether the last batch was not skipped."""
        return self._accepted

    @torch.no_grad()
    def trust(self, x: Tensor) -> Tensor:
        """Whether the inputs of a new batch are of a sane size."""
        self._new = x
        if self.settings.scale is None or not x.is_floating_point():  # 8 bits have one scale
            return self._yes
        square = self.context.normalize(x).square().mean(dtype=torch.float64)
        largest = self._largest_square
        first = (largest == 0) & square.isfinite()
        trusted = (square <= largest.clamp(min=1.0) * self.settings.scale**2) | first
        largest.copy_(torch.where(trusted, torch.maximum(largest, square), largest))
        return trusted

    @torch.no_grad()
    def refuse(self, trusted: Verdict) -> None:
        """A batch is not learned from, so there is nothing to take back."""
        assert isinstance(trusted, Tensor)
        self._accepted.copy_(trusted)
        self._counts[1] += ~trusted

    def _keep(self, weights: Sequence[Tensor], others: Sequence[Tensor]) -> Kept | TableKept:
        return self._tables.keep(weights, others)

    @torch.no_grad()
    def settle(self, loss: Tensor, trusted: Tensor) -> None:
        """The steps on a batch are done: let them stand, shorten them or take them back.

        In a graph, what is not waited for goes on beside what is.
        """
        assert self._kept is not None
        kept, lanes = self._kept, beside(self.context.device)
        found: list[Tensor] = []
        lanes.start(1, lambda: found.append(kept.sum()))
        divergences = self._change.divergences()
        lanes.join()
        if isinstance(kept, TableKept):
            noted = self._counts, self._largest_kl, self._accepted
            share = kept.decide(found[0], loss, trusted, divergences, self._bound, *noted)
            kept.settle_(self._accepted, share)
        else:
            kl = None if divergences is None else divergences.mean()
            self._settle(kept, loss + found[0], trusted, kl)
        self._kept = None

    def _settle(self, kept: Kept, total: Tensor, trusted: Tensor, kl: Tensor | None) -> None:
        """Without kernels of our own for it; the total is finite only if all that must be is."""
        lanes = beside(self.context.device)
        finite = (total if kl is None else total + kl) * 0 == 0
        torch.logical_and(finite, trusted, out=self._accepted)
        share = None
        if kl is not None and self._bound is not None:
            share = self._bound / torch.fmax(kl, self._bound)  # the bound if it is not a number
        lanes.start(1, lambda: self._take_note(finite, trusted, kl, share))
        kept.settle_(self._accepted, share)
        lanes.join()

    def _take_note(
        self, finite: Tensor, trusted: Tensor, kl: Tensor | None, share: Tensor | None
    ) -> None:
        """Count what was done."""
        if kl is not None and share is not None:
            self._counts[2] += (share < 1) & self._accepted
            torch.fmax(self._largest_kl, kl * self._accepted, out=self._largest_kl)
        self._count(trusted & ~finite, ~trusted)

    @torch.no_grad()
    def take_back(self) -> None:
        """The steps on a batch broke off: everything becomes what it was before."""
        assert self._kept is not None
        self._kept.settle_(self._accepted.fill_(False))
        self._count(~self._accepted, self._accepted)
        self._kept = None

    @torch.no_grad()
    def may_remember(self, accepted: Verdict) -> Tensor:
        """Whether the batch that :meth:`trust` saw last is worth a place in the memory."""
        assert isinstance(accepted, Tensor)
        assert self._new is not None
        x, self._new = self._new, None
        if self.settings.copies or len(x) < 2:
            return accepted
        found = remembers(x, accepted, self._counts)
        if found is not None:
            return found
        is_copies = (x == x[:1]).all()
        self._counts[3] += is_copies & accepted
        return ~is_copies & accepted

    def counts(self) -> GuardCounts:
        """What was done so far; this waits for the device."""
        not_finite, out_of_scale, shortened, copies, in_a_row = self._counts.tolist()
        return GuardCounts(
            not_finite=not_finite,
            out_of_scale=out_of_scale,
            shortened=shortened,
            copies=copies,
            in_a_row=in_a_row,
            largest_kl=float(self._largest_kl),
        )

    def look(self) -> bool:
        """Look what the device has done, warn of it, and say if it refused a batch since."""
        counts = self.counts()
        self._warn(counts)
        before, self._skipped = self._skipped, counts.skipped + counts.copies
        return self._skipped > before

    def state_dict(self) -> dict[str, Tensor]:
        """The counts and the scale of the inputs."""
        return {
            "counts": self._counts.clone(),
            "largest_kl": self._largest_kl.clone(),
            "largest_square": self._largest_square.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave; nothing if there is none of it."""
        if state:
            self._counts.copy_(state["counts"])
            self._largest_kl.copy_(state["largest_kl"])
            self._largest_square.copy_(state["largest_square"])

    def _count(self, bad: Tensor, untrusted: Tensor) -> None:
        self._counts[:2] += torch.stack([bad, untrusted])
        self._counts[4].add_(1).mul_(bad)
