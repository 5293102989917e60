"""Bit-exact results from run to run, on a GPU too."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPEATABLE = ":4096:8"

_lock = threading.Lock()
_users = 0
_before: tuple[bool, bool, str | None] = (False, False, None)


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Make PyTorch use deterministic algorithms only, and raise for operations that have none.

    The switch is PyTorch's own and holds for the process: it is on while any thread is inside.
    Without ``wanted`` nothing is done.
    """
    global _users, _before
    if not wanted:
        yield
        return
    with _lock:
        if _users == 0:
            on = torch.are_deterministic_algorithms_enabled()
            _before = (on, torch.backends.cudnn.benchmark, os.environ.get(_WORKSPACE))
            os.environ[_WORKSPACE] = _REPEATABLE  # cuBLAS reads it at first use
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                on, benchmark, workspace = _before
                torch.use_deterministic_algorithms(on)
                torch.backends.cudnn.benchmark = benchmark
                os.environ.pop(_WORKSPACE, None)
                if workspace is not None:
                    os.environ[_WORKSPACE] = workspace
