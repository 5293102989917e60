"""The smallest kernel, to find out whether Triton can compile."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fill(x, values):
    """Write a number. It comes in a tuple, which Triton before 3.2 does not know."""
    tl.store(x, values[0])
