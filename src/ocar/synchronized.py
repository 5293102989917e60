"""One thread at a time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Locked(Protocol):
    """What has a lock."""

    lock: threading.RLock


Owner = TypeVar("Owner", bound=Locked)
Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def alone(
    method: Callable[Concatenate[Owner, Arguments], Returned],
) -> Callable[Concatenate[Owner, Arguments], Returned]:
    """Make a method hold its object's lock, which may be held already by the same thread."""

    @functools.wraps(method)
    def holding(self: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        with self.lock:
            return method(self, *args, **kwargs)

    return holding
