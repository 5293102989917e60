"""When the guard backs off, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass

from ocar.config import require_options, require_range


@dataclass(frozen=True, kw_only=True)
class Guard:
    """When the guard backs off from a batch. A learner with ``guard=None`` has no guard."""

    kl: float | None = 20.0
    """Largest mean divergence, in nats, by which the preconditioned steps on a batch may change the
    predictions on its replayed samples; None for no bound. Plain SGD is not bounded."""

    gaussian_kl: float | None = None
    """The same in regression. There the divergence is half the squared change of the outputs, and
    with a Student-t likelihood a bound of it, see :mod:`ocar.methods.student_t`."""

    scale: float | None = 1000.0
    """A batch is skipped if the root mean square of its inputs, or of its regression targets, is
    above this number, and above this number times that of any batch before; None for no bound."""

    rescale_after: int | None = None
    """Batches of similar scale that are skipped for it in a row before their scale is accepted;
    None for never. ``learner.accept_scale()`` accepts it at once."""

    copies: bool = False
    """Whether to remember a batch whose samples are all the same."""

    def __post_init__(self) -> None:
        require_options(self)
        require_range(self, "larger than 0", "kl", "gaussian_kl", "scale", none="or None")
        require_range(self, "at least 1", "rescale_after", none="or None")


@dataclass(frozen=True, kw_only=True)
class GuardCounts:
    """What the guard of a learner has done so far."""

    #: Batches skipped because their loss or curvature, or the weights after them, were not finite.
    not_finite: int = 0
    #: Batches skipped because their inputs or targets were far larger than any before.
    out_of_scale: int = 0
    shortened: int = 0  #: Batches whose steps were shortened.
    copies: int = 0  #: Batches that were not remembered because all of their samples were the same.
    in_a_row: int = 0  #: Batches skipped in a row up to now, for whatever reason.
    #: The largest divergence that was measured, in nats, before any shortening.
    largest_kl: float = 0.0

    @property
    def skipped(self) -> int:
        """Batches that were rolled back or refused."""
        return self.not_finite + self.out_of_scale

    @property
    def total(self) -> int:
        """Batches that the guard backed off from in any way."""
        return self.skipped + self.shortened + self.copies

    def __str__(self) -> str:
        return (
            f"{self.not_finite} skipped for not being finite, {self.out_of_scale} skipped for "
            f"being out of scale, {self.shortened} shortened for changing predictions too much, "
            f"{self.copies} not remembered for being copies of one sample"
        )


class GuardWarning(UserWarning):
    """The guard backed off from a batch."""
