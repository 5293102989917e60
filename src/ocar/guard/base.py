"""What the guard of a learner does, on a host or on a device."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

from ocar.accel.snapshot import TableKept
from ocar.guard.change import Change
from ocar.guard.kept import Kept
from ocar.guard.settings import Guard, GuardCounts, GuardWarning
from ocar.methods.context import Context
from ocar.methods.objective import Step

Verdict = Tensor | bool
"""Yes or no: a scalar of bool on a device, where nothing waits for it, else a plain one."""


class BatchGuard(ABC):
    """The guard of one learner.

    For each batch: :meth:`trust`, then :meth:`refuse`, or :meth:`begin`, :meth:`ask` and
    :meth:`settle` (or :meth:`take_back`), then :meth:`may_remember`.

    Args:
        settings: When to back off.
        context: The parts of the learner.
        bounded: Whether the steps are such as have a bound on what they may change.
    """

    def __init__(self, settings: Guard, context: Context, *, bounded: bool) -> None:
        self.settings = settings
        self.context = context
        gaussian = context.likelihood == "gaussian"
        bound = settings.gaussian_kl if gaussian else settings.kl
        self.bound = bound if bounded else None
        self._change = Change(context)
        self._kept: Kept | TableKept | None = None
        self._warn_at = 1

    @property
    @abstractmethod
    def accepted(self) -> Verdict:
        """Whether the last batch was not skipped."""

    @abstractmethod
    def trust(self, x: Tensor) -> Verdict:
        """Whether the inputs of a new batch are of a sane size.

        Args:
            x: Raw samples on the model's device, ``(n, ...)``.
        """

    @abstractmethod
    def refuse(self, trusted: Verdict) -> None:
        """A batch is not learned from, so there is nothing to take back.

        Args:
            trusted: What :meth:`trust` said of it; if that is yes nothing happens.
        """

    def begin(self, weights: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        """The steps on a batch begin.

        Args:
            weights: What the steps change and may be shortened.
            others: What else they change and is to be as before if the batch is skipped.
        """
        self._kept = self._keep(weights, others)
        self._change.forget()

    def _keep(self, weights: Sequence[Tensor], others: Sequence[Tensor]) -> Kept | TableKept:
        return Kept(weights, others)

    def ask(self, step: Step, outputs: Tensor | None) -> None:
        """The first forward pass on a batch is done; see :meth:`Change.ask`."""
        if self.bound is not None:
            self._change.ask(step, outputs)

    @abstractmethod
    def settle(self, loss: Tensor, trusted: Tensor) -> None:
        """The steps on a batch are done: let them stand, shorten them or take them back.

        Args:
            loss: The last loss, a scalar.
            trusted: What :meth:`trust` said, as a tensor.
        """

    @abstractmethod
    def take_back(self) -> None:
        """The steps on a batch broke off: everything becomes what it was before."""

    @abstractmethod
    def may_remember(self, accepted: Verdict) -> Verdict:
        """Whether the batch that :meth:`trust` saw last is worth a place in the memory.

        Args:
            accepted: Whether it is not skipped.
        """

    @abstractmethod
    def counts(self) -> GuardCounts:
        """What was done so far; this waits for the device."""

    def look(self) -> bool:
        """Look what a device has done, warn of it, and say if it skipped a batch since."""
        return False

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """The counts and the scale of the inputs."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave; nothing if there is none of it."""

    def _warn(self, counts: GuardCounts) -> None:
        """Say what was done, the first time and then at 10, 100, 1,000, ... batches."""
        if counts.total >= self._warn_at:
            while self._warn_at <= counts.total:
                self._warn_at *= 10
            warnings.warn(f"The guard has backed off batches: {counts}.", GuardWarning, 6)
