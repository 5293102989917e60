"""Products of matrices with their own transposes, on a CPU.

NumPy sees that both sides are the same, and does half of the work. But its threads and PyTorch's
get in each other's way: each wait a while for more to do before they sleep. So with one thread it
is NumPy's at once; with more, large products are put off until there are several, and then done
side by side, each by one thread.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LARGE = 10_000_000  # operations from which on a product is worth putting off
_HELD = 16_000_000  # numbers that may wait


@dataclass(frozen=True)
class _Job:
    rows: Tensor
    scale: float
    out: Tensor

    @property
    def work(self) -> int:
        return self.rows.shape[0] * self.rows.numel()

    def do(self) -> None:
        matrix, place = self.rows.numpy(), self.out.numpy()
        with np.errstate(all="ignore"):  # what is not finite is found by others
            np.matmul(matrix, matrix.T, out=place)
            np.multiply(place, self.scale, out=place)


class _Waiting(threading.local):
    jobs: list[_Job] | None = None


_waiting = _Waiting()


@contextmanager
def side_by_side() -> Iterator[None]:
    """What :func:`product` returns inside it may be looked at only after it."""
    before, _waiting.jobs = _waiting.jobs, []
    try:
        yield
        _do_all(_waiting.jobs)
    finally:
        _waiting.jobs = before


def product(rows: Tensor, scale: float) -> Tensor:
    """``scale · rows · rowsᵀ``.

    Args:
        rows: Shape ``(d, m)``, on a CPU, in single or double precision.
        scale: A number.

    Returns:
        Shape ``(d, d)``.
    """
    alone = torch.get_num_threads() == 1
    size = rows.shape[0]
    if not alone and (_waiting.jobs is None or size * rows.numel() < _LARGE):
        return (rows @ rows.mT).mul_(scale)
    job = _Job(rows, scale, rows.new_empty(size, size))
    if alone:
        job.do()
        return job.out
    assert _waiting.jobs is not None
    _waiting.jobs.append(job)
    if sum(waiting.rows.numel() for waiting in _waiting.jobs) > _HELD:
        _do_all(_waiting.jobs)
    return job.out


def _do_all(jobs: list[_Job]) -> None:
    """Do what waits, the largest first, and let it go."""
    if not jobs:
        return
    with _one_thread_each, ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(_Job.do, sorted(jobs, key=lambda job: -job.work)))
    jobs.clear()


class _OneThreadEach:
    """Inside it NumPy's library of linear algebra uses no threads of its own.

    That holds for the process, so it is as before when the last of several threads has left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[int] = []

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = [library.get_num_threads() for library in _numpy_libraries()]
                self._limit([1] * len(self._before))
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit(self._before)

    def _limit(self, counts: list[int]) -> None:
        for library, count in zip(_numpy_libraries(), counts, strict=True):
            library.set_num_threads(count)


_one_thread_each = _OneThreadEach()


@functools.cache
def _numpy_libraries() -> list[Any]:
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:  # a machine with a GPU may do without
        return []
    found = ThreadpoolController().lib_controllers
    return [library for library in found if "numpy" in (library.filepath or "")]
