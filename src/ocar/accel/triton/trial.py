"""The smallest kernel for Triton; see :mod:`ocar.accel.compiled`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fill(x, value):
    """Write a number, to see if anything can be compiled."""
    tl.store(x, value)
