"""The ways to run an operation: its definition, the host's, Triton's kernels here or on a GPU.

Kernels run on a CPU by Triton's interpreter: install Triton and set ``TRITON_INTERPRET=1`` in the
environment before anything imports it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from tolerances import DOUBLE_KERNEL, SINGLE_KERNEL, TF32_KERNEL
from torch import Tensor

from ocar.accel import OPERATIONS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and bool(importlib.util.find_spec("triton"))

on_interpreter = pytest.mark.skipif(
    not INTERPRETED, reason="needs Triton's interpreter: TRITON_INTERPRET=1"
)


GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
"""Marks of a test that needs a CUDA device."""


def on_gpu(test: Any) -> Any:
    """Mark a test that needs a CUDA device."""
    for mark in GPU:
        test = mark(test)
    return test


def module(name: str) -> ModuleType:
    """A module of the package, where an operation of the same name hides it."""
    return importlib.import_module(f"ocar.accel.{name}")


@dataclass(frozen=True)
class Implementation:
    """One way to run all operations."""

    name: str
    """Name of the implementation; ``"chosen"`` for what the arguments choose."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{self.name}-{self.device}-{str(self.dtype).removeprefix('torch.')}"

    def has(self, operation: str) -> bool:
        """Whether the operation has this implementation."""
        return self.name == "chosen" or self.name in OPERATIONS[operation].implementations

    def __getitem__(self, operation: str) -> Callable[..., Any]:
        """The operation in this implementation, or its definition if there is none."""
        found = OPERATIONS[operation]
        if self.name == "chosen":
            return found
        return found.implementations.get(self.name, found.implementations["plain"])

    def given(self, t: Tensor) -> Tensor:
        """A tensor on the device, in the type if it holds numbers; a copy in the same layout."""
        dtype = self.dtype if t.is_floating_point() else t.dtype
        copy = torch.empty_strided(t.shape, t.stride(), dtype=dtype, device=self.device)
        return copy.copy_(t)

    @property
    def rounds(self) -> bool:
        """Whether products are rounded to TF32."""
        return self.device == "cuda"


ORACLE = Implementation("plain", dtype=torch.float64)
"""The definition in double precision."""

IMPLEMENTATIONS = [
    pytest.param(Implementation("plain"), id="plain"),
    pytest.param(Implementation("host"), id="host"),
    pytest.param(Implementation("host", dtype=torch.float64), id="host-double"),
    pytest.param(Implementation("triton"), id="triton-interpreter", marks=on_interpreter),
    pytest.param(
        Implementation("triton", "cuda"),
        id="triton-gpu",
        marks=GPU,
    ),
]
"""All that are compared with the oracle."""


@dataclass(frozen=True)
class Case:
    """Arguments of an operation, and what is compared."""

    operation: str
    name: str
    run: Callable[[Implementation], list[Tensor]]
    """Makes the arguments, runs the operation, and returns all that it returns or changes."""

    reference: Callable[[], list[Tensor]] | None = None
    """The same without the package, in double precision."""

    close: float = SINGLE_KERNEL
    """Relative error of each tensor in single precision, by norms; 0 for the same to the bit."""

    definition: float = DOUBLE_KERNEL
    """The same of the definition in double precision against the reference."""

    rounded: float = TF32_KERNEL
    """The same where products are rounded to TF32."""

    only: tuple[str, ...] = ("plain", "host", "triton")
    """The implementations that are made for these arguments."""

    def __str__(self) -> str:
        return f"{self.operation}-{self.name}"

    def tolerance(self, implementation: Implementation) -> float:
        """Relative error that an implementation may have."""
        if self.close == 0:
            return 0.0
        if implementation.dtype == torch.float64:
            return DOUBLE_KERNEL
        return self.rounded if implementation.rounds else self.close


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in double precision that single precision holds exactly."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Two results agree, the relative error of each tensor measured by its norm."""
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        one = one.detach().cpu()
        assert one.shape == other.shape, number
        if not other.is_floating_point():
            assert torch.equal(one, other), (number, one, other)
            continue
        one, other = one.double(), other.detach().double()
        finite = other.isfinite()
        assert torch.equal(one.isfinite(), finite), number
        error, size = (one - other)[finite].norm(), other[finite].norm()
        assert float(error) <= tolerance * float(size), (number, float(error), float(size))
