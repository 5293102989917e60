"""A guard that keeps one bad batch from spoiling what was learned.

After the steps on a stream batch it looks at their effect. A batch is *skipped* if

- its loss, a weight after it, or its curvature is not finite, or
- its inputs, or the targets of a regression, are out of scale: their root mean square is above
  1,000, and above a thousand times the largest of any batch before.

A skipped batch leaves nothing behind: see :mod:`ocar.undo`. Only ``learner.batches`` and the counts
of the guard include it. A batch that an error or an interrupt breaks off is not counted at all. On
a GPU the verdict is a tensor, and nothing waits for it once a batch has been learned. There it
restores weights, statistics, curvature and the samples in the memory; steps, random draws, new
classes and the counters of the memory stay as after a learned batch.

A batch is *shortened* if its preconditioned steps have moved the predictions p on the first replay
batch by more than a bound, KL(p before ‖ p after) > ρ: the constraint of OCAR's problem, measured
and not approximated. The weights then go only ρ/KL of their way. The divergence is convex in the
logits, so this is enough wherever the logits are linear in the weights.

A batch is learned but *not remembered* if all of its samples are the same, such as the images of a
camera that has failed: a memory of copies is no memory.

Where nothing is wrong, nothing is changed, to the bit.
"""

from ocar.guard.guard import BatchGuard
from ocar.guard.settings import Guard, GuardCounts, GuardWarning

__all__ = ["BatchGuard", "Guard", "GuardCounts", "GuardWarning"]
