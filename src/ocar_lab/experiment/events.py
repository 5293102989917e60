"""What happens in a run, told to whoever listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ocar.events import Evaluated, Finished, Guarded, TaskEnded


@dataclass(frozen=True, kw_only=True)
class Started:
    """The run begins or goes on."""

    path: Path
    """The run folder."""

    batches: int
    """Batches in the stream; 0 if it does not know."""

    position: int
    """Batches done before."""

    history: tuple[Evaluated, ...]
    """The evaluations before; of a long stream those that were written down."""

    evaluated: int
    """How many evaluations there were before."""

    aaa: float
    """Mean accuracy over all of these; NaN where there is none."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The learner has been evaluated, and that has been written down if it is to be."""

    evaluated: Evaluated
    """The evaluation."""

    reported: Mapping[str, float]
    """What the learner said of the last batch: ``loss``, ``classes``, ``tau``, ..."""

    kept: bool = True
    """Whether it has a line in the metrics; of a long stream not each has."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint has been written."""

    index: int
    """Index of the last batch in it."""

    seconds: float
    """What it cost."""


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """The run was asked to stop, and is saved."""

    index: int
    """Index of the last batch done."""


@dataclass(frozen=True, kw_only=True)
class AlreadyFinished:
    """The run was finished before; nothing was done."""

    path: Path
    """The run folder."""


RunEvent = Started | Recorded | Guarded | Saved | TaskEnded | Finished | Stopped | AlreadyFinished
