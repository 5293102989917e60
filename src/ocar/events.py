"""What :func:`ocar.evaluate.evaluate` tells while a learner goes through a stream.

Events are values: what counts of an evaluation is in it, so the metrics of a run can be computed
from its events alone, and a run that goes on needs no more than those of before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, SupportsFloat

if TYPE_CHECKING:  # whoever only reads what was told does not wait for PyTorch
    from torch import Tensor


class StepReport(Protocol):
    """What a learner says about a batch that it has learned."""

    @property
    def loss(self) -> Tensor:
        """The loss, a scalar."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """A complete batch has been learned."""

    index: int
    """Its place in the stream."""

    task: int
    """Its task."""

    loss: SupportsFloat
    """What the learner reported; on a GPU ``float(loss)`` waits for it."""

    report: StepReport
    """All that the learner reported."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How often a learner was right on each of some tasks."""

    correct: tuple[int, ...]
    """Correct predictions for each task; empty where none were counted, as in regression."""

    sizes: tuple[int, ...]
    """Samples of each task."""

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Accuracy on each task; NaN without samples."""
        pairs = zip(self.correct, self.sizes, strict=True)
        return tuple(c / n if n else float("nan") for c, n in pairs)

    @property
    def accuracy(self) -> float:
        """Accuracy on the samples of all these tasks together; NaN without samples."""
        total = sum(self.sizes)
        return sum(self.correct) / total if total else float("nan")


@dataclass(frozen=True, kw_only=True)
class Evaluated(Counts):
    """The learner has been tried on the validation data of each task up to the current one.

    In regression it has been tried on all data so far instead.
    """

    index: int
    """Index of the batch before it."""

    task: int
    """Task of that batch."""

    seconds: float
    """Seconds of training since the stream began, evaluation left out."""

    seen: int = 0
    """Samples that the stream has given so far."""

    online_correct: int | None = None
    """How many of these were predicted right before they were learned; None if not measured."""

    l_p: float | None = None
    """L_p so far, of regression: losses of incoming batches before they were learned, summed."""

    l_s: float | None = None
    """L_s so far, of regression: losses on all data so far at each evaluation, summed."""


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """The learner's guard has backed off from batches since it was last asked.

    On a GPU it is asked when evaluations are waited for.
    """

    index: int
    """Index of the last batch by then."""

    not_finite: int
    """Batches skipped because their loss or the weights after them were not finite."""

    out_of_scale: int
    """Batches skipped because their inputs were far larger than any before."""

    shortened: int
    """Batches whose steps were shortened, because they changed predictions too much."""

    copies: int
    """Batches not remembered because all of their samples were the same."""

    in_a_row: int
    """Batches up to this one, without one between, that were not finite."""


@dataclass(frozen=True, kw_only=True)
class AtRest:
    """All that was learned has been evaluated and told: the moment to save the learner, or to stop.

    On a GPU evaluations are told in blocks, so this comes after a number of them.
    """

    index: int
    """Index of the last batch."""


@dataclass(frozen=True, kw_only=True)
class TaskEnded:
    """The last batch of a task has been learned and evaluated."""

    index: int
    """Index of that batch."""

    task: int
    """The task."""

    seconds: float
    """Seconds of training since the stream began, evaluation left out."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The metrics of a whole run; None where one is not defined or was not measured.

    Acc and the probe are on test data, the other accuracies on validation data.
    """

    acc: float | None
    """Acc: accuracy on all test data at the end."""

    aaa: float | None
    """AAA: mean over time of the accuracy on all tasks so far."""

    wc_acc: float | None
    """WC-Acc: worst-case accuracy."""

    forgetting: float | None
    """Accuracy lost on the first task since it ended."""

    plasticity: float | None
    """Accuracy on the last task at the end."""

    seconds: float
    """Seconds of training, evaluation left out."""

    forgetting_mean: float | None = None
    """Accuracy lost since it ended, mean over all tasks but the last."""

    stability_gap: float | None = None
    """Drop of the accuracy on earlier tasks after a boundary, mean over boundaries."""

    recovery: float | None = None
    """Evaluations until it has recovered, mean over boundaries; a task that ends before counts
    with all of its evaluations."""

    probe: float | None = None
    """Probed Acc: test accuracy of a linear classifier fitted on the features at the end."""

    online_acc: float | None = None
    """Accuracy on each incoming batch before it was learned, over the whole stream."""

    l_p: float | None = None
    """L_p: loss of each incoming batch before it was learned, accumulated; of regression."""

    l_s: float | None = None
    """L_s: loss on all data so far after each step, accumulated; of regression."""

    first_task_seconds: float | None = None
    """Seconds of training on the first task, evaluation left out."""


@dataclass(frozen=True, kw_only=True)
class Finished(Counts):
    """The stream is over and the learner has been tried on the test data of every task."""

    summary: Summary
    """The metrics."""

    probe: float | None = None
    """Probed Acc, if it was asked for."""


Event = Learned | Evaluated | Guarded | AtRest | TaskEnded | Finished
