"""The same numbers to the bit, each time, on a GPU too."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPEATABLE = ":4096:8"

_lock = threading.Lock()
_wanted = 0
_before: tuple[bool, bool, str | None] = (False, False, None)


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Inside it PyTorch takes only algorithms that give the same each time, or says which has none.

    The switch is PyTorch's own and holds for the process: it is on as long as anyone is inside.

    Args:
        wanted: False to do nothing.
    """
    if not wanted:
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _wanted, _before
    with _lock:
        if _wanted == 0:
            on = torch.are_deterministic_algorithms_enabled()
            _before = (on, torch.backends.cudnn.benchmark, os.environ.get(_WORKSPACE))
            os.environ[_WORKSPACE] = _REPEATABLE  # cuBLAS reads it when it is first used
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        _wanted += 1


def _leave() -> None:
    global _wanted
    with _lock:
        _wanted -= 1
        if _wanted == 0:
            on, benchmark, workspace = _before
            torch.use_deterministic_algorithms(on)
            torch.backends.cudnn.benchmark = benchmark
            if workspace is None:
                os.environ.pop(_WORKSPACE, None)
            else:
                os.environ[_WORKSPACE] = workspace
