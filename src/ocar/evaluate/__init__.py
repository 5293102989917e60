"""The loop of online continual learning: learn a batch, then say how good the learner is now.

:func:`evaluate` is a generator of events and does nothing else: no file is written and nothing
is printed. Progress bars, logs and checkpoints listen to the events. The one to save learner and
stream on is ``AtRest``: all that was learned has been evaluated.
"""

from ocar.evaluate.history import History
from ocar.evaluate.loop import OnlineLearner, evaluate
from ocar.evaluate.summary import summarize
from ocar.events import (
    AtRest,
    Counts,
    Evaluated,
    Event,
    Finished,
    Guarded,
    Learned,
    StepReport,
    Summary,
    TaskEnded,
)
from ocar.streams.base import TaskStream

__all__ = [
    "AtRest",
    "Counts",
    "Evaluated",
    "Event",
    "Finished",
    "Guarded",
    "History",
    "Learned",
    "OnlineLearner",
    "StepReport",
    "Summary",
    "TaskEnded",
    "TaskStream",
    "evaluate",
    "summarize",
]
