"""The events of a search."""

from __future__ import annotations

from dataclasses import dataclass

from ocar_lab.runs.studies import Trial


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A trial has begun or moved on: batches done, and batches in all, 0 if unknown."""

    number: int
    done: int = 0
    batches: int = 0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trial has ended; a trial that is cut short does not emit this."""

    trial: Trial
    best: Trial | None  #: So far.
    details: str = ""  #: The traceback, if it failed.


SearchEvent = Moved | Ended
