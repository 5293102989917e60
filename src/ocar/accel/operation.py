"""Operations with one definition and several implementations.

An operation is defined in plain PyTorch. The definition runs on every device, is what a reader
reads, and what the other implementations are tested against. An implementation is chosen by the
arguments alone: their device, type, shape and layout. The caller never chooses.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

OPERATIONS: dict[str, Operation[..., Any]] = {}
"""All operations by name."""


class Operation(Generic[P, R]):
    """A function with a plain definition and perhaps faster implementations.

    Attributes:
        implementations: By name; ``"plain"`` is the definition.
    """

    def __init__(self, plain: Callable[P, R]) -> None:
        self.implementations: dict[str, Callable[P, R]] = {"plain": plain}
        self._choices: list[tuple[str, Callable[..., bool]]] = []
        functools.update_wrapper(self, plain)
        OPERATIONS[plain.__name__] = self

    def implementation(
        self, name: str, *, when: Callable[..., bool]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator that adds an implementation.

        Args:
            name: What it is called in tests.
            when: From the arguments to whether it can be used, and pays.
        """

        def add(function: Callable[P, R]) -> Callable[P, R]:
            self.implementations[name] = function
            self._choices.append((name, when))
            return function

        return add

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the first implementation that fits the arguments, else the definition."""
        for name, fits in self._choices:
            if fits(*args, **kwargs):
                return self.implementations[name](*args, **kwargs)
        return self.implementations["plain"](*args, **kwargs)


def operation(plain: Callable[P, R]) -> Operation[P, R]:
    """Make a function an operation; the function is its definition."""
    return Operation(plain)


def has_triton(*tensors: Tensor) -> bool:
    """Whether kernels for Triton can run on these tensors: all on a GPU, with a Triton that works.

    Triton comes with PyTorch for CUDA on Linux.
    """
    return all(t.is_cuda for t in tensors) and _triton_works()


@functools.cache
def _triton_works() -> bool:
    """Compile a small kernel; if there is a Triton but no compiler, say so once."""
    try:
        from ocar.accel.triton import trial
    except ImportError:
        return False
    try:
        trial.fill[(1,)](torch.empty(1, device="cuda"), (1.0,))
    except Exception as error:  # noqa: BLE001 (compilers fail in many ways)
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"Steps on the GPU are slower: Triton cannot compile its kernels: {reason}",
            stacklevel=2,
        )
        return False
    return True


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Start a kernel on the device of its first tensor."""
    first = next(argument for argument in arguments if isinstance(argument, Tensor))
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, **options)


def power_of_2(number: int) -> int:
    """The smallest power of 2 that is at least a number; Triton's blocks have such sizes."""
    return 1 << (number - 1).bit_length()


def rounds_to_tf32() -> bool:
    """Whether convolutions may round their inputs to TF32, as they do by default."""
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # set for some operations only
        return False


def known(flag: Tensor) -> bool | None:
    """The value of a flag if it can be read without waiting for a device, else None."""
    return bool(flag) if flag.is_cpu else None
