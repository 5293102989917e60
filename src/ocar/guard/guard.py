"""The guard of one learner: one implementation for all devices.

Everything that it decides is a value in a tensor. So nothing waits for a device, and its work can
be part of a recorded step.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ocar import accel
from ocar.guard.settings import Guard, GuardCounts, GuardWarning
from ocar.models.modes import evaluating
from ocar.structure import Inputs, call, parts_of

ALIKE = 10.0
"""Refused batches are of like scale if the largest is at most this many times the smallest."""

MANY_IN_A_ROW = 20
"""Skipped batches in a row that are worth a warning of their own."""


class BatchGuard:
    """Decides for each batch whether its steps stand.

    The calls for a batch: :meth:`start`; :meth:`trust`; then :meth:`refuse`, or :meth:`begin`,
    :meth:`ask` and :meth:`commit`; :meth:`end`; :meth:`close`. Instead of :meth:`end` there may be
    :meth:`abandon`. A batch that is remembered before the steps asks :meth:`remembers`.

    Args:
        settings: When to back off; None for never.
        model: The model that learns.
        normalize: From raw samples to inputs of the model.
        bound: Largest mean divergence of the predictions on replayed samples; None for any.
        distance: The divergence in regression, from the outputs before and now,
            ``(n, outputs)``, to one number a sample.
        shared: Shares passes of the model out over ranks; None on one device.

    Attributes:
        verdict: The decision on the last batch, and the counts so far.
        kept: Whether the last batch may be remembered, a scalar of bool.
    """

    def __init__(
        self,
        settings: Guard | None,
        *,
        model: nn.Module,
        normalize: Callable[[Inputs], Inputs],
        bound: float | None,
        distance: accel.Distance = accel.half_square,
        shared: accel.SharedModel | None = None,
    ) -> None:
        self.settings = settings
        self.model = model
        self._normalize = normalize
        self._distance = distance
        self._shared = shared
        device = next(model.parameters()).device
        self._bound = None if bound is None else torch.tensor(bound, device=device).float()
        self.verdict = accel.Verdict.on(device)
        self.kept = torch.ones((), dtype=torch.bool, device=device)
        self._set_scale(torch.zeros((), dtype=torch.float64, device=device))
        self._square: Tensor | None = None  # of the batch in progress
        self._none_refused = torch.zeros(3, 1, dtype=torch.float64, device=device)
        self._refused = self._none_refused
        self._yes = torch.ones((), dtype=torch.bool, device=device)
        modules = list(model.modules())
        # A model that draws at random answers differently each time, so it is asked in eval mode.
        self._is_random = any(isinstance(m, _DropoutNd) for m in modules)
        self._is_coupled = any(isinstance(m, _BatchNorm) for m in modules)
        self._snapshot: accel.Snapshot | None = None
        self._scratch = accel.Scratch()
        self._divergences: Callable[[], Tensor | None] = _nobody_asked
        self._copied: Tensor | None = None
        self._before: tuple[list[int], float, tuple[Tensor, Tensor, Tensor]] | None = None
        self._warn_at, self._reported, self._warned_of_row = 1, 0, False

    def start(self) -> None:
        """A batch has arrived."""
        if accel.known(self.kept) is not None:
            counts, largest = self.verdict.counts.tolist(), float(self.verdict.largest)
            self._before = counts, largest, (self._largest_square, self._limit, self._refused)

    @torch.no_grad()
    def trust(self, x: Inputs, y: Tensor) -> Tensor:
        """Whether raw samples, ``(n, ...)``, and targets are of a sane scale, a scalar of bool.

        Only floating-point parts have a scale; of several inputs the largest counts. The scales
        count for later batches once :meth:`end` finds that the batch was accepted.
        """
        scale = None if self.settings is None else self.settings.scale
        floats = [n for n, part in parts_of(x).items() if part.is_floating_point()]
        if scale is None or not (floats or y.is_floating_point()):
            return self._yes  # uint8 has one scale, and an index or a label has none
        squares = []
        if floats:
            parts = parts_of(self._normalize(x))
            own = (_mean_square(parts[name]) for name in floats)
            squares.append(functools.reduce(torch.maximum, own))
        if y.is_floating_point():
            squares.append(_mean_square(y.to(self._limit.device, non_blocking=True)))
        square = torch.stack(squares)
        trusted = (square <= self._limit).all()
        self._square = square
        if accel.known(trusted):
            self._refused = self._none_refused
            return trusted
        return self._follow_refused(trusted, square)

    def _follow_refused(self, trusted: Tensor, square: Tensor) -> Tensor:
        """Follow the batches that are refused in a row; trust them if they are enough.

        ``_refused`` holds their number, and the smallest and the largest of their mean squares; of
        the last batch alone if it is unlike the one before.
        """
        patience = None if self.settings is None else self.settings.rescale_after
        row = square  # without patience only the last batch matters
        if patience is not None:
            count, least, most = self._refused.unbind()
            least, most = torch.minimum(least, square), torch.maximum(most, square)
            near = (most <= least * ALIKE**2) | (most <= self._limit)
            alike = ((count > 0) & near).all()
            row = torch.stack([(count + 1).expand_as(square), least, most])
            row = torch.where(alike, row, torch.stack([torch.ones_like(square), square, square]))
        known = square.isfinite().all()
        self._refused = torch.where(trusted | ~known, self._none_refused, row)
        return trusted if patience is None else trusted | (self._refused[0] > patience).all()

    def accept_scale(self) -> None:
        """Trust inputs and targets of the scale of the last batches, if refused for it."""
        self._set_scale(torch.maximum(self._largest_square, self._refused[2]))
        self._refused = self._none_refused

    def _set_scale(self, largest: Tensor) -> None:
        """Take mean squares as the largest so far; after 0 any finite one may come."""
        scale = None if self.settings is None else self.settings.scale
        self._largest_square = self._limit = largest
        if scale is not None:
            limit = largest.clamp(min=1.0) * scale**2
            self._limit = torch.where(largest == 0, torch.finfo(limit.dtype).max, limit)

    def refuse(self, trusted: Tensor) -> None:
        """No step is taken on a batch; it is skipped if :meth:`trust` said so."""
        self.verdict.accepted.copy_(trusted)
        self.kept.copy_(trusted)
        self.verdict.counts[1] += ~trusted
        self.verdict.counts[4].add_(1).mul_(~trusted)
        self._report()

    def begin(
        self,
        weights: Sequence[Tensor],
        statistics: Sequence[Tensor],
        others: Sequence[Tensor],
        *,
        new: Inputs | None = None,
    ) -> None:
        """The steps on a batch begin.

        Args:
            weights: What may be shortened.
            statistics: What else must be finite.
            others: What is only rolled back.
            new: Raw samples that may be remembered afterwards; None if there are none.
        """
        self._divergences, self._copied = _nobody_asked, self._copies(new)
        if self.settings is not None:
            tensors = accel.Tensors(weights=weights, statistics=statistics, others=others)
            self._snapshot = accel.snapshot(tensors, self._scratch)

    def ask(
        self, x: Inputs, outputs: Tensor | None, *, replayed: int, active: Tensor | None
    ) -> None:
        """Keep the predictions on the replayed samples before the first step.

        Args:
            x: Inputs of the joint batch, the replayed samples last.
            outputs: What the model returned, if it was one pass over the joint batch.
            replayed: How many samples are replayed.
            active: Which outputs stand for a class; None in regression.
        """
        if self._bound is None or outputs is None or not replayed:
            return
        old = x[-replayed:]
        if self._is_random:
            before = accel.predictions(self._answer(old), active)
            self._divergences = partial(self._diverged, old, active, before, self._answer)
            return
        before = accel.predictions(outputs.detach()[-replayed:], active)
        asked = x if self._is_coupled else old
        given = (asked, active, before)
        if self._shared is None:
            self._divergences = partial(accel.divergence, self.model, *given, self._distance)
        else:
            self._divergences = partial(self._diverged, *given, self._answer_as_learned)

    @torch.no_grad()
    def commit(self, loss: Tensor, ok: Tensor | None, trusted: Tensor) -> None:
        """The steps on a batch are done: let them stand, shorten them or roll them back.

        Args:
            loss: The last loss, a scalar.
            ok: Whether all that the transform computed was finite; None for yes. It is true
                afterwards.
            trusted: What :meth:`trust` said.
        """
        if self._snapshot is None:
            return
        snapshot = self._snapshot
        divergences, total = accel.parallel(self._divergences, lambda: snapshot.total() + loss)
        found = accel.Evidence(
            total=total,
            ok=self._yes if ok is None else ok,
            trusted=trusted,
            divergences=divergences,
            bound=self._bound,
        )
        accel.commit_or_rollback(snapshot, self.verdict, found)
        if ok is not None:
            ok.fill_(True)  # the batch that was not is rolled back
        if accel.known(self.kept) is None:  # the memory of a recording is not ours to keep
            self._snapshot = None
        self._keep(self.verdict.accepted, self._copied)

    def roll_back(self) -> None:
        """The steps on a batch failed: it is skipped, and tensors become what they were."""
        if self._snapshot is None:
            return
        self._restore()
        self.kept.fill_(False)
        self.verdict.counts[0] += 1
        self.verdict.counts[4] += 1
        self._report()

    def abandon(self) -> None:
        """An error has broken off a batch: it does not count, and tensors become what they were."""
        if self._snapshot is not None and not self._snapshot.is_recorded:
            self._restore()
        if self._before is not None:
            counts, largest, (self._largest_square, self._limit, self._refused) = self._before
            self.verdict.counts.copy_(torch.tensor(counts))
            self.verdict.largest.fill_(largest)
        self._square = None

    def _restore(self) -> None:
        assert self._snapshot is not None
        self._snapshot.restore_(self.verdict.accepted.fill_(False), self._yes.float())
        self._snapshot = None

    def end(self) -> None:
        """The batch was dealt with; if it was accepted, its scale counts from now on."""
        square, before = self._square, self._largest_square
        if square is not None and not accel.known((square <= before).all()):
            accepted = self.verdict.accepted
            self._set_scale(torch.where(accepted, torch.maximum(before, square), before))
        self._square = None

    def close(self) -> None:
        """The batch is over: it cannot be abandoned any more."""
        self._snapshot = self._before = None

    @torch.no_grad()
    def remembers(self, x: Inputs, accepted: Tensor) -> Tensor:
        """Whether a batch with raw samples x is worth a place in the memory, a scalar of bool."""
        self._keep(accepted, self._copies(x))
        return self.kept

    def _copies(self, x: Inputs | None) -> Tensor | None:
        """Whether all samples are the same, a scalar of bool; None if that does not matter."""
        if x is None or self.settings is None or self.settings.copies or len(x) < 2:
            return None
        parts = parts_of(x).values()
        if any(accel.known((p[0] != p[1]).any()) for p in parts):
            return None  # most batches, where nothing waits for the answer
        return functools.reduce(torch.logical_and, [(p == p[:1]).all() for p in parts])

    def _keep(self, accepted: Tensor, copies: Tensor | None) -> None:
        if copies is None:
            self.kept.copy_(accepted)
        else:
            torch.gt(accepted, copies, out=self.kept)  # accepted and no copies
            self.verdict.counts[3] += accepted & copies
        self._report()

    def _diverged(
        self,
        x: Inputs,
        active: Tensor | None,
        before: Tensor,
        answer: Callable[[Inputs], Tensor],
    ) -> Tensor:
        """:func:`accel.divergence` of a model that draws at random, or is shared out."""
        now = accel.predictions(answer(x)[-len(before) :], active)
        return self._distance(before, now) if active is None else accel.kl_divergence(before, now)

    def _answer(self, x: Inputs) -> Tensor:
        with evaluating(self.model):
            return self._call(x)

    def _answer_as_learned(self, x: Inputs) -> Tensor:
        with accel.frozen_statistics(self.model):
            return self._call(x)

    def _call(self, x: Inputs) -> Tensor:
        own = partial(call, self.model)
        return own(x) if self._shared is None else self._shared.call(own, x)

    # Counts and state

    def counts(self) -> GuardCounts:
        """What it has done so far; on a GPU this waits."""
        numbers = dict(zip(accel.COUNTS, self.verdict.counts.tolist(), strict=True))
        return GuardCounts(**numbers, largest_kl=float(self.verdict.largest))

    def check(self) -> bool:
        """Warn of what a device has done, and say whether a batch was refused since the last call.

        This waits for the device.
        """
        counts = self.counts()
        self._warn(counts)
        before, self._reported = self._reported, counts.skipped + counts.copies
        return self._reported > before

    def _report(self) -> None:
        """Warn at once where that means no waiting."""
        if accel.known(self.verdict.accepted) is None:
            return
        counts = self.verdict.counts.tolist()
        if sum(counts) >= self._warn_at or counts[-1] >= MANY_IN_A_ROW:
            self._warn(self.counts())
        elif counts[-1] == 0:
            self._warned_of_row = False

    def _warn(self, counts: GuardCounts) -> None:
        """Warn the first time, then at 10, 100, ... batches, and once of many in a row."""
        if counts.total >= self._warn_at:
            while self._warn_at <= counts.total:
                self._warn_at *= 10
            warnings.warn(f"The guard has backed off from batches: {counts}.", GuardWarning, 6)
        many = counts.in_a_row >= MANY_IN_A_ROW
        if many and not self._warned_of_row:
            warnings.warn(
                f"The guard has skipped {counts.in_a_row} batches in a row, so nothing is learned: "
                f"{counts}. If the scale has changed for good, call learner.accept_scale(), or set "
                "Guard(rescale_after=...). Otherwise check the inputs and the targets, or try a "
                "smaller learning rate.",
                GuardWarning,
                6,
            )
        self._warned_of_row = many

    def state_dict(self) -> dict[str, Tensor]:
        """The counts, and the scale of inputs and targets."""
        if self.settings is None:
            return {}
        return {
            "counts": self.verdict.counts.clone(),
            "largest_kl": self.verdict.largest.clone(),
            "largest_square": self._largest_square.clone(),
            "refused": self._refused.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave; nothing if it is empty."""
        if state:
            self.verdict.counts.copy_(state["counts"])
            self.verdict.largest.copy_(state["largest_kl"])
            self._set_scale(state["largest_square"].to(self._largest_square, copy=True))
            self._refused = state["refused"].to(self._refused, copy=True).reshape(3, -1)


def _mean_square(x: Tensor) -> Tensor:
    """The mean of the squares of all numbers, in float64; 16 bits cannot hold their sum."""
    flat = x.reshape(-1).to(torch.promote_types(x.dtype, torch.float32))
    return (flat @ flat).double() / max(1, flat.numel())


def _nobody_asked() -> None:
    """No divergence is measured."""
