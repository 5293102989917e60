"""A copy of what a step changes, and the verdict on the step as one masked write.

The guard lets the steps on a batch stand, shortens them, or rolls them back. On a GPU nothing may
wait for that decision, so it is a value: ``commit_or_rollback`` computes it on the device and
writes the old values back where it says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ocar.accel.layout import Scratch, flat, from_weight_matrix, is_dense
from ocar.accel.operation import has_triton, launch, operation, power_of_2
from ocar.accel.streams import is_recording

_PIECE = 2048  # numbers that a program takes at a time
_PROGRAMS = 264  # that share a roll back, if there is one

COUNTS = ("not_finite", "out_of_scale", "shortened", "copies", "in_a_row")
"""What is counted, in the order of :attr:`Verdict.counts`."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """The decision on the last batch and the counts so far; tensors that are changed in place."""

    accepted: Tensor  # whether the steps stand, a scalar of bool
    counts: Tensor  # batches by COUNTS, int64
    largest: Tensor  # the largest divergence so far, float32

    @classmethod
    def on(cls, device: torch.device) -> Verdict:
        """A verdict on no batch yet."""
        return cls(
            accepted=torch.ones((), dtype=torch.bool, device=device),
            counts=torch.zeros(len(COUNTS), dtype=torch.int64, device=device),
            largest=torch.zeros((), device=device),
        )


@dataclass(frozen=True, eq=False)
class Tensors:
    """What a step changes."""

    weights: Sequence[Tensor]  # what may be shortened
    statistics: Sequence[Tensor] = ()  # what else must be finite, as the state of an optimizer
    others: Sequence[Tensor] = ()  # what is only rolled back


@dataclass(frozen=True, eq=False, kw_only=True)
class Evidence:
    """What is known of the steps on a batch; flags are scalars of bool."""

    total: Tensor  # the sum of the last loss and of all values that must be finite
    ok: Tensor  # whether everything else that the steps computed was finite
    trusted: Tensor  # whether the inputs are of a sane scale
    divergences: Tensor | None  # how far the predictions on each replayed sample have moved
    bound: Tensor | None  # largest mean divergence; None for any


class Snapshot:
    """A copy of tensors, in one piece for each type; on a CPU in scratch memory.

    Attributes:
        is_recorded: Whether it is part of a recording: nothing has been copied yet, nor changed.
    """

    def __init__(self, tensors: Tensors, scratch: Scratch | None = None) -> None:
        self.is_recorded = is_recording()
        scratch = scratch or Scratch()
        groups = (tensors.weights, tensors.statistics, tensors.others)
        self._parts = [
            (same, scratch.flat(same, key=(number, same[0].dtype)), number == 0)
            for number, group in enumerate(groups)
            for same in _by_dtype(group)
        ]
        self._checked = [*tensors.weights, *tensors.statistics]

    def total(self) -> Tensor:
        """The sum of the present values that must be finite: finite only if all are."""
        if not self._checked[0].is_cpu:  # there a launch costs more than a copy
            numbers = [flat(same) for same in _by_dtype(self._checked)]
        else:
            numbers = [t.detach() for t in self._checked]
        types = (torch.promote_types(t.dtype, torch.float32) for t in numbers)
        sums = [t.sum(dtype=dtype) for t, dtype in zip(numbers, types, strict=True)]
        return torch.stack(sums).sum(dtype=torch.float64)

    @torch.no_grad()
    def restore_(self, accepted: Tensor, share: Tensor) -> None:
        """Roll back unless accepted; let the weights go only a share of their way.

        Args:
            accepted: Whether the present values stay, a scalar of bool.
            share: How much of its way each weight goes, a scalar in [0, 1].
        """
        for same, before, shortens in self._parts:
            after = torch.where(accepted, flat(same), before)
            if shortens:  # a share of 1 gives the same to the bit
                after = torch.lerp(before, after, share.to(before.dtype))
            pieces = after.split([t.numel() for t in same])
            views = [from_weight_matrix(p, like=t) for p, t in zip(pieces, same, strict=True)]
            torch._foreach_copy_(same, views)


def _by_dtype(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        yield [t.detach() for t in tensors if t.dtype == dtype]


@operation
def snapshot(tensors: Tensors, scratch: Scratch | None = None) -> Snapshot:
    """Copy what a step changes; a later copy with the same scratch memory overwrites it."""
    return Snapshot(tensors, scratch)


@operation
def commit_or_rollback(before: Snapshot, verdict: Verdict, found: Evidence) -> None:
    """Decide on the steps on a batch, and write back what must not stay.

    A batch is skipped if its inputs are not trusted, or if its loss, a weight after it or its
    divergence is not finite. Its steps are shortened if the mean divergence is above the bound: the
    weights go bound / divergence of their way. The verdict is changed in place.
    """
    kl, bound, total, trusted = None, found.bound, found.total, found.trusted
    if found.divergences is not None and bound is not None:
        kl = found.divergences.mean()
        total = total + kl
    finite = (total * 0 == 0) & found.ok
    accepted = torch.logical_and(finite, trusted, out=verdict.accepted)
    share = torch.ones_like(verdict.largest)
    if kl is not None and bound is not None:
        share = bound / torch.fmax(kl, bound)  # 1 if the divergence is not a number
        verdict.largest.copy_(torch.fmax(verdict.largest, torch.where(accepted, kl, 0.0)))
    events = torch.stack([trusted & ~finite, ~trusted, accepted & (share < 1)])
    verdict.counts[:3] += events
    verdict.counts[4].add_(1).mul_(~accepted)
    before.restore_(accepted, share)


@commit_or_rollback.implementation(
    "host", when=lambda before, verdict, found: verdict.accepted.is_cpu
)
def _commit_on_host(before: Snapshot, verdict: Verdict, found: Evidence) -> None:
    """The same in plain numbers: an operation on a tensor costs a hundred times as much."""
    kl, limit = 0.0, math.inf
    if found.divergences is not None and found.bound is not None:
        kl, limit = float(found.divergences.mean()), float(found.bound)
    counts, trust = verdict.counts.numpy(), bool(found.trusted)
    finite = math.isfinite(float(found.total) + kl) and bool(found.ok)
    accepted, share = finite and trust, limit / kl if kl > limit else 1.0
    verdict.accepted.fill_(accepted)
    counts[:3] += [trust and not finite, not trust, accepted and share < 1]
    counts[4] = 0 if accepted else counts[4] + 1
    if accepted and kl > float(verdict.largest):
        verdict.largest.fill_(kl)
    if not accepted or share < 1:
        before.restore_(verdict.accepted, torch.tensor(share))


# On a GPU


class TableSnapshot(Snapshot):
    """A copy made by one kernel of what a table lists; the other ``tensors`` as in the base."""

    def __init__(self, table: _Table, tensors: Tensors, scratch: Scratch | None) -> None:
        super().__init__(tensors, scratch)
        from ocar.accel.triton import snapshot as kernels

        self._table, self._kernels = table, kernels
        self._copy = torch.empty(table.total, dtype=torch.float32, device=table.rows.device)
        self._launch(kernels.copy, len(table.rows), self._copy)

    def total(self) -> Tensor:
        """See :meth:`Snapshot.total`."""
        count = self._table.checked
        sums = torch.empty(count, dtype=torch.float32, device=self._copy.device)
        self._launch(self._kernels.sum_up, count, sums)
        return sums.sum()

    def restore_(self, accepted: Tensor, share: Tensor) -> None:
        """See :meth:`Snapshot.restore_`."""
        pieces = len(self._table.rows)
        given = (self._copy, accepted, share, pieces)
        self._launch(self._kernels.restore, min(_PROGRAMS, pieces), *given)
        super().restore_(accepted, share)

    def _launch(self, kernel: Any, programs: int, *given: Any) -> None:
        rows, aligned = self._table.rows, self._table.aligned
        launch(kernel, (programs,), rows, *given, BLOCK=_PIECE, ALIGNED=aligned)


class _Table(NamedTuple):
    """Where tensors lie."""

    rows: Tensor
    checked: int  # rows of tensors that must be finite; they come first
    total: int
    aligned: bool


@functools.cache
def _table(places: tuple[tuple[int, int, int], ...], device: torch.device) -> _Table:
    """The table of tensors at ``(address, numbers, kind)``; a graph uses it, so it stays."""
    rows, total = [], 0
    for address, numbers, kind in places:
        for first in range(0, numbers, _PIECE):
            length = min(_PIECE, numbers - first)
            rows.append((address + 4 * first, total + first, length, kind))
        total += -(-numbers // 4) * 4  # so that four numbers can be read together
    aligned = all(address % 16 == 0 for address, _, _ in places)
    checked = sum(row[3] > 0 for row in rows)
    return _Table(torch.tensor(rows, dtype=torch.int64).to(device), checked, total, aligned)


def _is_known(t: Tensor, device: torch.device) -> bool:
    return t.device == device and t.dtype == torch.float32 and is_dense(t) and t.numel() > 0


def _has_table(tensors: Tensors, scratch: Scratch | None = None) -> bool:
    checked = [*tensors.weights, *tensors.statistics]
    if not tensors.weights or not has_triton(*checked):
        return False
    return all(_is_known(t, tensors.weights[0].device) for t in checked)


@snapshot.implementation("triton", when=_has_table)
def _snapshot_by_kernel(tensors: Tensors, scratch: Scratch | None = None) -> Snapshot:
    device = tensors.weights[0].device
    groups = zip((2, 1, 0), (tensors.weights, tensors.statistics, tensors.others), strict=True)
    places = tuple(
        (t.data_ptr(), t.numel(), kind)
        for kind, group in groups
        for t in group
        if _is_known(t, device)
    )
    unknown = [t for t in tensors.others if not _is_known(t, device)]
    return TableSnapshot(_table(places, device), Tensors(weights=(), others=unknown), scratch)


@commit_or_rollback.implementation(
    "triton", when=lambda before, verdict, found: isinstance(before, TableSnapshot)
)
def _commit_by_kernel(before: Snapshot, verdict: Verdict, found: Evidence) -> None:
    from ocar.accel.triton import snapshot as kernels

    share, divergences, bound = torch.empty_like(verdict.largest), found.divergences, found.bound
    samples = 0 if divergences is None or bound is None else len(divergences)
    # A missing tensor is replaced by another one that the kernel never touches.
    launch(
        kernels.decide,
        (1,),
        *(found.total, found.ok, found.trusted),
        verdict.largest if divergences is None else divergences,
        *(verdict.largest if bound is None else bound, verdict.counts, verdict.largest),
        *(verdict.accepted, share, samples),
        SAMPLES=0 if samples == 0 else max(16, power_of_2(samples)),
    )
    before.restore_(verdict.accepted, share)
