"""The events of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ocar.events import Evaluated, Finished, Guarded, TaskEnded


@dataclass(frozen=True, kw_only=True)
class Started:
    """The run begins or resumes."""

    path: Path  #: The run folder.
    batches: int  #: Batches in the stream; 0 if unknown.
    position: int  #: Batches done before.
    history: tuple[Evaluated, ...]  #: Earlier ones; in a long stream only those that were written.
    evaluated: int  #: Number of earlier evaluations.
    aaa: float  #: Mean accuracy over all of them; NaN if there is none.


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The learner has been evaluated."""

    evaluated: Evaluated
    reported: Mapping[str, float]  #: The learner's report on the batch: ``loss``, ``tau``, ...
    aaa: float  #: Mean accuracy over all evaluations so far; NaN in regression.
    kept: bool = True  #: Whether the metrics have a line for it: in a long stream not always.


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint has been written."""

    index: int  #: Index of the last batch in it.
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """The run was asked to stop, and is saved."""

    index: int  #: Index of the last batch done.


@dataclass(frozen=True, kw_only=True)
class AlreadyFinished:
    """The run was finished before; nothing was done."""

    path: Path  #: The run folder.


RunEvent = Started | Recorded | Guarded | Saved | TaskEnded | Finished | Stopped | AlreadyFinished
