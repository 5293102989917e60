"""Learn and evaluate a stream: :func:`evaluate` is a generator of events.

It writes no file and prints nothing: progress bars, logs and checkpoints listen to the events.
Save learner and stream on an ``Idle`` event.
"""

from ocar.evaluate.history import History, summarize
from ocar.evaluate.loop import OnlineLearner, evaluate
from ocar.evaluate.unknown import Detection, detect_unknown
from ocar.events import (
    Counts,
    Evaluated,
    Event,
    Finished,
    Guarded,
    Idle,
    Learned,
    StepReport,
    Summary,
    TaskEnded,
)
from ocar.streams.base import TaskStream

__all__ = [
    "Counts",
    "Detection",
    "Evaluated",
    "Event",
    "Finished",
    "Guarded",
    "History",
    "Idle",
    "Learned",
    "OnlineLearner",
    "StepReport",
    "Summary",
    "TaskEnded",
    "TaskStream",
    "detect_unknown",
    "evaluate",
    "summarize",
]
