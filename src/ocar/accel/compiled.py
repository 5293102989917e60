"""Kernels of our own, for a GPU, compiled by Triton.

Triton comes with PyTorch for CUDA. Where it is missing, or cannot compile, PyTorch's kernels do the
same work: more of them, more slowly.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import torch


@functools.cache
def kernels(name: str) -> ModuleType | None:
    """A module of kernels, if there is a Triton that can compile one.

    Args:
        name: Its full name.
    """
    return importlib.import_module(name) if _compiles() else None


@functools.cache
def _compiles() -> bool:
    """Whether there is a Triton and a compiler; if only the first, this is said once."""
    try:
        trial = importlib.import_module("ocar.accel.triton.trial")
    except ImportError:
        return False
    return compiles(lambda: trial.fill[(1,)](torch.empty(1, device="cuda"), 1), "Steps")


def compiles(job: Callable[[], object], about: str) -> bool:
    """Do what compiles kernels for the first time; if that fails say so, and why.

    Args:
        job: What to call.
        about: What is slower then.
    """
    try:
        job()
    except Exception as error:  # noqa: BLE001 (a compiler's failures are of many kinds)
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"{about} take more kernels, more slowly: Triton cannot compile ours: {reason}",
            stacklevel=3,
        )
        return False
    return True


def may_round() -> bool:
    """Whether convolutions may round what they multiply, as they do unless told otherwise."""
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # it was set for some operations only
        return False


def run_side_by_side(jobs: Iterable[Callable[[], object]], device: torch.device) -> None:
    """Do what compiles kernels in threads, on the current stream, and wait for them.

    Args:
        jobs: What to call, each with other kernels.
        device: Where the kernels run.
    """
    stream = torch.cuda.current_stream(device)

    def run(job: Callable[[], object]) -> None:
        with torch.cuda.stream(stream):
            job()

    with ThreadPoolExecutor() as pool:
        list(pool.map(run, jobs))
