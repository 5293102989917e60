"""No guard: the method as it was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ocar.guard.base import BatchGuard, Verdict
from ocar.guard.settings import Guard, GuardCounts
from ocar.methods.context import Context
from ocar.methods.objective import Step


class NoGuard(BatchGuard):
    """Lets everything pass.

    Args:
        context: The parts of the learner.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(Guard(), context, bounded=False)

    @property
    def accepted(self) -> bool:
        """Yes."""
        return True

    def trust(self, x: Tensor) -> bool:
        """Yes."""
        return True

    def refuse(self, trusted: Verdict) -> None:
        """Nothing is refused."""

    def begin(self, weights: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        """Nothing is kept."""

    def ask(self, step: Step, outputs: Tensor | None) -> None:
        """Nothing is asked."""

    def settle(self, loss: Tensor, trusted: Tensor) -> None:
        """The steps stand."""

    def take_back(self) -> None:
        """There is nothing to go back to."""

    def may_remember(self, accepted: Verdict) -> Verdict:
        """As it was accepted."""
        return accepted

    def counts(self) -> GuardCounts:
        """None."""
        return GuardCounts()

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Nothing."""
