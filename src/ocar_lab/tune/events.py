"""A trial as a study stores it, and the events of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["running", "finished", "pruned", "failed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a study."""

    number: int  #: In the journal; trials that were cut short have numbers too.
    state: State
    settings: Mapping[str, Any]
    value: float | None = None  #: If it finished.
    scores: Mapping[int, float] = field(default_factory=dict)  #: By batches learned.
    seconds: float | None = None
    error: str = ""  #: If it failed.


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
