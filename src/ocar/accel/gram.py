"""Gram matrices of many layers: Σ t tᵀ of what each layer saw.

The Kronecker factors are Gram matrices with few rows and many terms. On a GPU those of several
layers are made by one kernel, only half of each, because they are symmetric. On the host NumPy does
half of the work too.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ocar.accel.operation import has_triton, launch, operation

Operand = Callable[[], Tensor]
"""Makes what a layer saw, ``(batch, groups, d, L)`` in any memory layout, when it is needed."""


@operation
def gram(operands: Sequence[Operand], scales: Sequence[float], outs: Sequence[Tensor]) -> None:
    """Write scale · Σ over batch and locations of t tᵀ, for several layers.

    Operands are ``(batch, groups, d, L)``, ``outs`` contiguous, ``(groups, d, d)``.
    """
    for operand, scale, out in zip(operands, scales, outs, strict=True):
        _gram(operand(), scale, out)


def _gram(t: Tensor, scale: float, out: Tensor) -> None:
    rows = _rows(t).to(out.dtype)
    with _tensor_cores(rows):
        torch.baddbmm(out, rows, rows.mT, beta=0, alpha=scale, out=out)


def _rows(t: Tensor) -> Tensor:
    """``(groups, d, batch · L)``; for the patches of a convolution this is no copy."""
    return t.detach().permute(1, 2, 0, 3).flatten(2)


@contextmanager
def _tensor_cores(like: Tensor) -> Iterator[None]:
    """Let a GPU round factors to TF32, as PyTorch does in convolutions.

    A sum of t tᵀ stays positive semi-definite when t is rounded, and the rounding is far smaller
    than the difference between two batches.
    """
    if not like.is_cuda or like.dtype != torch.float32:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# On the host

_LARGE = 10_000_000  # operations from which a product is worth a thread of its own
_HELD = 16_000_000  # numbers of operands that may wait for their turn


@gram.implementation("host", when=lambda operands, scales, outs: all(o.is_cpu for o in outs))
def _gram_on_host(
    operands: Sequence[Operand], scales: Sequence[float], outs: Sequence[Tensor]
) -> None:
    """By NumPy, which sees that both sides are the same.

    The threads of NumPy and PyTorch get in each other's way: each spin for a while before they
    sleep. So with one thread NumPy does a product at once; with more, large products wait until
    there are several, and run in parallel with one thread each.
    """
    waiting: list[tuple[Tensor, float, Tensor]] = []
    held, threads = 0, torch.get_num_threads()
    for operand, scale, out in zip(operands, scales, outs, strict=True):
        t = operand()
        large = t.shape[2] * t.numel() >= _LARGE
        if t.shape[1] > 1 or t.dtype not in (torch.float32, torch.float64):
            _gram(t, scale, out)
        elif threads == 1:
            _multiply(_rows(t)[0], scale, out[0])
        elif large:
            rows = _rows(t)[0]
            held += rows.numel()
            waiting.append((rows, scale, out[0]))
            if held > _HELD:
                _run_in_threads(waiting, threads)
                held = 0
        else:
            _gram(t, scale, out)
    _run_in_threads(waiting, threads)


def _multiply(rows: Tensor, scale: float, out: Tensor) -> None:
    with np.errstate(all="ignore"):  # NaN and Inf are found later
        matrix = rows.numpy() * math.sqrt(scale)
        np.matmul(matrix, matrix.T, out=out.numpy())


def _run_in_threads(jobs: list[tuple[Tensor, float, Tensor]], threads: int) -> None:
    if len(jobs) == 1:
        with _one_thread_each:
            _multiply(*jobs[0])
    elif jobs:
        with _one_thread_each, ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda job: _multiply(*job), jobs))
    jobs.clear()


class _OneThreadEach:
    """Inside it NumPy's linear algebra uses no threads of its own.

    This is a setting of the process; it is restored when the last of several threads has left.
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
    except ImportError:  # a machine with a GPU may lack it
        return []
    found = ThreadpoolController().lib_controllers
    return [library for library in found if "numpy" in (library.filepath or "")]


# On a GPU

_TERMS = 32  # terms that a program adds up at a time
_TOGETHER = 5  # large operands that one launch takes; more would keep more patches in memory
_MOST = 2**31  # numbers of an operand that a kernel can count


class _Shape(NamedTuple):
    """An operand as the kernels see it: ``images`` parts, each with ``area`` locations."""

    size: int
    images: int
    area: int
    channels_last: bool


def _find_shape(t: Tensor) -> _Shape | None:
    """How an operand lies in memory; None if there is no kernel for that."""
    batch, groups, size, area = t.shape
    if groups > 1 or t.dtype != torch.float32 or t.numel() >= _MOST or t.data_ptr() % 16:
        return None
    of_batch, _, of_row, of_location = t.stride()
    if of_row == 1 and (of_location == size or area == 1):
        whole = of_batch == size * area or batch == 1
        return _Shape(size, batch, area, True) if whole else None
    if area > 1 and of_location != 1:
        return None
    if of_row == area and (of_batch == size * area or batch == 1):
        shape = _Shape(size, batch, area, False)
    elif of_row == batch * area and (of_batch == area or batch == 1):  # patches
        shape = _Shape(size, 1, batch * area, False)
    else:
        return None
    return shape if shape.area % _TERMS == 0 else None


class _Plan(NamedTuple):
    """Tables for the kernels, for operands of some shapes."""

    programs: list[Tensor]  # of operands that are channels first, and that are channels last
    tiles: Tensor
    sizes: Tensor
    scales: Tensor
    parts: int


@functools.cache
def _plan(
    shapes: tuple[_Shape, ...],
    scales: tuple[float, ...],
    starts: tuple[int, ...],
    tile: int,
    share: int,
    device: torch.device,
) -> _Plan:
    """The tables, on the device; operands that are channels first come first."""
    first_last = sum(not shape.channels_last for shape in shapes)
    programs: tuple[list[tuple[int, ...]], ...] = ([], [])
    tiles: list[tuple[int, ...]] = []
    parts = 0
    for number, (shape, start) in enumerate(zip(shapes, starts, strict=True)):
        own = number - first_last if shape.channels_last else number
        terms = shape.images * shape.area
        shares = range(0, terms, share)
        for row in range(-(-shape.size // tile)):
            for column in range(row + 1):
                tiles.append((number, row, column, parts, len(shares), start))
                for first in shares:
                    last = min(terms, first + share)
                    programs[shape.channels_last].append((own, row, column, first, last, parts))
                    parts += 1
    sizes = [(shape.size, shape.area) for shape in shapes]
    *tables, places, extents = (
        torch.tensor(rows, dtype=torch.int32, device=device) for rows in (*programs, tiles, sizes)
    )
    return _Plan(
        tables, places, extents, torch.tensor(scales, dtype=torch.float32, device=device), parts
    )


def _fits(operands: Sequence[Operand], scales: Sequence[float], outs: Sequence[Tensor]) -> bool:
    # All of the products are offsets into one flat buffer.
    return has_triton(*outs) and len({o.untyped_storage().data_ptr() for o in outs}) == 1


@gram.implementation("triton", when=_fits)
def _gram_by_kernels(
    operands: Sequence[Operand], scales: Sequence[float], outs: Sequence[Tensor]
) -> None:
    patches: list[_Job] = []
    others: list[_Job] = []
    for operand, scale, out in zip(operands, scales, outs, strict=True):
        t = operand().detach()
        shape = _find_shape(t)
        if shape is None:
            _gram(t, scale, out)
        elif shape.images > 1:
            others.append((t, shape, scale, out))
        else:
            patches.append((t, shape, scale, out))
            if len(patches) == _TOGETHER:
                _square(patches, tile=64, share=2048, warps=4)
                patches.clear()
    if patches:
        _square(patches, tile=64, share=2048, warps=4)
    if len(others) == 1:  # a library is as fast for one
        t, _, scale, out = others[0]
        _gram(t, scale, out)
    elif others:
        _square(others, tile=32, share=1024, warps=2)


_Job = tuple[Tensor, _Shape, float, Tensor]
"""An operand, its shape, the scale, and where the product goes."""


def _square(jobs: Sequence[_Job], *, tile: int, share: int, warps: int) -> None:
    """Make several products: ``tile`` rows and columns and ``share`` terms a program."""
    from ocar.accel.triton import gram as kernels

    jobs = sorted(jobs, key=lambda job: job[1].channels_last)
    tensors, shapes, scales, outs = zip(*jobs, strict=True)
    base = outs[0].as_strided((1,), (1,), 0)
    starts = tuple(out.storage_offset() for out in outs)
    plan = _plan(shapes, scales, starts, tile, share, base.device)
    parts = torch.empty(plan.parts, tile, tile, dtype=torch.float32, device=base.device)
    count = sum(not shape.channels_last for shape in shapes)
    first, last = ([t.data_ptr() for t in some] for some in (tensors[:count], tensors[count:]))
    options: dict[str, Any] = {"TILE": tile, "TERMS": _TERMS, "num_warps": warps}
    if first:
        launch(
            kernels.square_channels_first,
            (len(plan.programs[0]),),
            *(tuple(first), plan.sizes, plan.programs[0], parts),
            LAYERS=len(first),
            **options,
        )
    if last:
        launch(
            kernels.square_channels_last,
            (len(plan.programs[1]),),
            *(tuple(last), plan.sizes[count:], plan.programs[1], parts),
            LAYERS=len(last),
            ALIGNED=all(shape.size % 4 == 0 for shape in shapes[count:]),
            **options,
        )
    tables = (parts, base, plan.sizes, plan.scales, plan.tiles)
    launch(kernels.add_up, (len(plan.tiles),), *tables, TILE=tile)
