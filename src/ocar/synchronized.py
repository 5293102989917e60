"""One thread at a time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Locked(Protocol):
    """An object with a lock."""

    lock: threading.RLock


Owner = TypeVar("Owner", bound=Locked)
P = ParamSpec("P")
R = TypeVar("R")


def synchronized(method: Callable[Concatenate[Owner, P], R]) -> Callable[Concatenate[Owner, P], R]:
    """Let a method hold its object's lock, which the same thread may already hold."""

    @functools.wraps(method)
    def holding(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return holding
