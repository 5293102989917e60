"""Write samples into the columns of a memory; see :mod:`ocar.accel.write_rows`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def write_rows(source, column, places, accepted, count, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Write rows of a batch over rows of a column, unless they are not accepted.

    ``places`` has the ``count`` rows of the column, then those of the batch. A row has ``SIZE``
    numbers, of which a program writes ``BLOCK``. ``accepted`` may be None.
    """
    row = tl.program_id(0)
    write = True
    if accepted is not None:
        write = tl.load(accepted) != 0
    if write:
        to, of = tl.load(places + row), tl.load(places + count + row)
        inside = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        there = inside < SIZE
        value = tl.load(source + of * SIZE + inside, mask=there)
        tl.store(column + to * SIZE + inside, value, mask=there)
