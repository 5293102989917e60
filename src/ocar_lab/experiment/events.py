"""The events of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ocar.events import Evaluated, Finished, Guarded, TaskEnded


@dataclass(frozen=True, kw_only=True)
class Started:
    """The run begins or resumes.

    Attributes:
        path: The run folder.
        batches: Batches in the stream; 0 if unknown.
        position: Batches done before.
        history: Earlier evaluations; in a long stream only those that were written.
        evaluated: Number of earlier evaluations.
        aaa: Mean accuracy over all of them; NaN if there is none.
    """

    path: Path
    batches: int
    position: int
    history: tuple[Evaluated, ...]
    evaluated: int
    aaa: float


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The learner has been evaluated.

    Attributes:
        evaluated: The evaluation.
        reported: The learner's report on the last batch: ``loss``, ``classes``, ``tau``, ...
        aaa: Mean accuracy over all evaluations so far; NaN in regression.
        kept: Whether the metrics have a line for it; in a long stream not every evaluation has one.
    """

    evaluated: Evaluated
    reported: Mapping[str, float]
    aaa: float
    kept: bool = True


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint has been written; ``index`` is that of its last batch."""

    index: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """The run was asked to stop, and is saved; ``index`` is that of the last batch done."""

    index: int


@dataclass(frozen=True, kw_only=True)
class AlreadyFinished:
    """The run in the folder ``path`` was finished before; nothing was done."""

    path: Path


RunEvent = Started | Recorded | Guarded | Saved | TaskEnded | Finished | Stopped | AlreadyFinished
