"""The events that :func:`ocar.evaluate.evaluate` emits while a learner goes through a stream.

An evaluation holds its counts. So the metrics of a run follow from its events, and a resumed run
needs nothing but the earlier events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, SupportsFloat

if TYPE_CHECKING:  # reading stored events must not import PyTorch
    from torch import Tensor


class StepReport(Protocol):
    """What a learner returns for a learned batch."""

    @property
    def loss(self) -> Tensor:
        """The loss, a scalar."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """A complete batch has been learned."""

    index: int  #: Index of the batch in the stream.
    task: int  #: Its task.
    loss: SupportsFloat  #: The learner's loss; on a GPU ``float(loss)`` waits for the device.
    report: StepReport  #: The learner's whole report.


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Correct predictions on some tasks; empty if none were counted, as in regression."""

    correct: tuple[int, ...]  #: Correct predictions of each task.
    sizes: tuple[int, ...]  #: Samples of each task.

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Accuracy on each task; NaN without samples."""
        pairs = zip(self.correct, self.sizes, strict=True)
        return tuple(c / n if n else float("nan") for c, n in pairs)

    @property
    def accuracy(self) -> float:
        """Accuracy on the samples of all tasks together; NaN without samples."""
        total = sum(self.sizes)
        return sum(self.correct) / total if total else float("nan")


@dataclass(frozen=True, kw_only=True)
class Evaluated(Counts):
    """The learner was evaluated on the validation data of each task up to the current one.

    In regression it was evaluated on all data so far instead.
    """

    index: int  #: Index of the last learned batch.
    task: int  #: Task of that batch.
    seconds: float  #: Seconds of training since the stream began, without evaluation.
    seen: int = 0  #: Samples that the stream has given so far.
    #: How many of these were predicted right before they were learned; None if not measured.
    online_correct: int | None = None
    #: L_p of a regression: the losses of incoming batches before they were learned, summed.
    l_p: float | None = None
    #: L_s of a regression: the losses on all data so far at each evaluation, summed.
    l_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """The learner's guard has backed off from batches since the last flush."""

    index: int  #: Index of the last learned batch.
    not_finite: int  #: Batches skipped because the loss or the new weights were not finite.
    out_of_scale: int  #: Batches skipped because their inputs or targets were out of scale.
    shortened: int  #: Batches with shortened steps, because they changed predictions too much.
    copies: int  #: Batches not remembered because all of their samples were the same.
    in_a_row: int  #: Batches skipped in a row, up to this one, for whatever reason.


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Everything learned so far has been evaluated and its events emitted.

    This is the moment to save the learner, or to stop. On a GPU evaluations are emitted in blocks,
    so there is one of these for each block.
    """

    index: int  #: Index of the last learned batch.


@dataclass(frozen=True, kw_only=True)
class TaskEnded:
    """The last batch of a task has been learned and evaluated."""

    index: int  #: Index of that batch.
    task: int  #: The task.
    seconds: float  #: Seconds of training since the stream began, without evaluation.


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The metrics of a whole run; None where one is not defined or was not measured.

    ``acc`` and ``probe`` are on test data, the other accuracies on validation data.
    """

    acc: float | None  #: Acc: accuracy on all test data at the end.
    aaa: float | None  #: AAA: mean over time of the accuracy on all tasks so far.
    wc_acc: float | None  #: WC-Acc: worst-case accuracy.
    forgetting: float | None  #: Accuracy lost on the first task since it ended.
    plasticity: float | None  #: Accuracy on the last task at the end.
    seconds: float  #: Seconds of training, without evaluation.
    #: Accuracy lost since a task ended, mean over all tasks but the last.
    forgetting_mean: float | None = None
    #: Drop of the accuracy on earlier tasks after a boundary, mean over boundaries.
    stability_gap: float | None = None
    #: Evaluations until that accuracy has recovered, mean over boundaries. A task that ends before
    #: counts with all of its evaluations.
    recovery: float | None = None
    #: Share of the boundaries after which it recovered, or did not fall; None also in results of
    #: earlier versions.
    recovered: float | None = None
    #: Probed Acc: test accuracy of a linear classifier fitted on the features at the end.
    probe: float | None = None
    #: Accuracy on each incoming batch before it was learned, over the whole stream.
    online_acc: float | None = None
    #: L_p of a regression: the losses of incoming batches before they were learned, summed.
    l_p: float | None = None
    #: L_s of a regression: the losses on all data so far after each step, summed.
    l_s: float | None = None
    first_task_seconds: float | None = None  #: Seconds of training on the first task.


@dataclass(frozen=True, kw_only=True)
class Finished(Counts):
    """The stream is over and the learner was evaluated on the test data of every task."""

    summary: Summary  #: The metrics.
    probe: float | None = None  #: Probed Acc, if it was asked for.


Event = Learned | Evaluated | Guarded | Idle | TaskEnded | Finished
