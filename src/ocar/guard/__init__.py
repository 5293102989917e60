"""A guard that keeps one bad batch from spoiling what was learned.

Once a stream batch has been learned, it looks at what came of it. A batch is *skipped*, that is
weights and statistics become what they were before and the batch is not remembered, if

- its loss, or a weight after it, is not finite, or
- its inputs are out of scale: their root mean square is more than a thousand times the largest
  of any batch before.

A batch is *shortened* if its preconditioned steps have changed the predictions p on the first
replay batch by more than a bound, KL(p before ‖ p after) > ρ: the constraint of OCAR's problem,
measured and not approximated. The weights then go only ρ/KL of the way. The divergence is convex
in the logits, so that this is enough wherever the logits are linear in the weights.

A batch is learned but *not remembered* if all of its samples are one and the same, such as the
images of a camera that has failed: a memory of copies is no memory.

Where nothing is wrong, nothing is changed, to the bit. On a GPU all of it is decided by values and
not by branches: nothing waits for the device, and it can be part of a captured graph.
"""

from ocar.guard.base import BatchGuard, Verdict
from ocar.guard.device import DeviceGuard
from ocar.guard.host import HostGuard
from ocar.guard.none import NoGuard
from ocar.guard.settings import Guard, GuardCounts, GuardWarning
from ocar.methods.context import Context

__all__ = ["BatchGuard", "Guard", "GuardCounts", "GuardWarning", "Verdict", "make_guard"]


def make_guard(settings: Guard | None, context: Context, *, bounded: bool) -> BatchGuard:
    """The guard of a learner.

    Args:
        settings: When to back off; None for never.
        context: The parts of the learner.
        bounded: Whether its steps are such as have a bound on what they may change.
    """
    if settings is None:
        return NoGuard(context)
    kind = HostGuard if context.device.type == "cpu" else DeviceGuard
    return kind(settings, context, bounded=bounded)
