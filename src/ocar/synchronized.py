"""One call at a time, from however many threads, and in both processes after a fork.

A fork copies memory but only one thread. A lock that another thread holds would stay locked in the
child for ever, over data in the middle of a change. So a fork waits for the calls in progress. A
child with a learner computes with one thread.
"""

from __future__ import annotations

import _thread
import functools
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 10.0
"""Seconds that a fork waits for calls in progress; a lock that is held longer breaks in the child.
"""


class Lock(_thread.RLock):  # type: ignore[misc]  # CPython allows it, typeshed does not
    """A lock that the thread which holds it may take again, and that a fork waits for.

    Releasing it runs no Python code, so that an interrupt cannot prevent it.
    """

    def __init__(self) -> None:
        self._broken = False
        self._order = next(_made)
        _locks.add(self)

    def __enter__(self) -> bool:  # type: ignore[override]
        if self._broken:
            raise RuntimeError(
                "This process was forked while another thread was using the learner, whose copy "
                "here may be in the middle of a step. Load a checkpoint in this process, or fork "
                "inside `with learner.lock:`."
            )
        return super().__enter__()


_made = itertools.count()
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_forking = threading.Lock()
_held: list[Lock] = []


def _before_fork() -> None:
    _forking.acquire()
    deadline = time.monotonic() + PATIENCE
    # Older first: a serving takes its learner's lock before its own.
    _held.extend(
        lock
        for lock in sorted(_locks, key=lambda lock: lock._order)
        if lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
    )


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _forking.release()


def _after_fork_in_child() -> None:
    for lock in set(_locks).difference(_held):
        lock._broken = True
    if _locks:  # PyTorch would wait for threads that are not part of this process
        torch.set_num_threads(1)
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )


class _Locked(Protocol):
    lock: Lock


class _Drawing(_Locked, Protocol):
    @property
    def draws(self) -> Callable[[], AbstractContextManager[None]]: ...


L = TypeVar("L", bound=_Locked)
D = TypeVar("D", bound=_Drawing)


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave ``torch.inference_mode``, whose tensors cannot be changed later; without gradients."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def synchronized(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """Let a method hold the lock of its object."""

    @functools.wraps(method)
    def holding(self: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock, outside_inference_mode():
            return method(self, *args, **kwargs)

    return holding


def drawing(method: Callable[Concatenate[D, P], R]) -> Callable[Concatenate[D, P], R]:
    """The same, for a method in which layers may draw random numbers; see ``accel.OwnDraws``."""

    @functools.wraps(method)
    def holding(self: D, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock, self.draws():
            return method(self, *args, **kwargs)

    return holding
