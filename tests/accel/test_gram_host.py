"""Gram matrices on the host: threads, order, and what waits for its turn."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from implementations import module
from torch import Tensor
from torch.testing import assert_close

from ocar.accel import OPERATIONS

gram = module("gram")
SHAPES = ((3, 5), (130, 200), (300, 150), (40, 9000), (1, 1))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def operands(dtype: torch.dtype) -> list[Tensor]:
    """Matrices as ``(1, 1, rows, terms)``."""
    generator = torch.Generator().manual_seed(0)
    rows = (torch.randn(*shape, generator=generator, dtype=dtype) for shape in SHAPES)
    return [matrix.unsqueeze(0).unsqueeze(0) for matrix in rows]


def gram_on_host(given: list[Tensor], scale: float = 0.5) -> list[Tensor]:
    outs = [t.new_empty(t.shape[1], t.shape[2], t.shape[2]) for t in given]
    jobs = [partial(Tensor.clone, t) for t in given]
    OPERATIONS["gram"].implementations["host"](jobs, [scale] * len(given), outs)
    return outs


def check(found: list[Tensor], given: list[Tensor]) -> None:
    for one, t in zip(found, given, strict=True):
        exact = 0.5 * torch.einsum("bgil,bgjl->gij", t.double(), t.double())
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}[t.dtype]
        assert one.dtype == t.dtype
        assert_close(one.double(), exact, rtol=tolerance, atol=tolerance * float(exact.max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.usefixtures("threads")
def test_products(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, transposed: bool) -> None:
    monkeypatch.setattr(gram, "_LARGE", 1000)
    given = [t.mT.contiguous().mT if transposed else t for t in operands(dtype)]
    check(gram_on_host(given), given)


@pytest.mark.parametrize("held", [0, 30_000, 10**9])
def test_products_that_wait_are_done_before_they_hold_too_much(
    monkeypatch: pytest.MonkeyPatch, held: int, threads: int
) -> None:
    monkeypatch.setattr(gram, "_LARGE", 0)
    monkeypatch.setattr(gram, "_HELD", held)
    sizes: list[int] = []
    real = gram._run_in_threads

    def run(jobs: list[tuple[torch.Tensor, float, torch.Tensor]], count: int) -> None:
        assert count == threads
        sizes.extend([sum(rows.numel() for rows, _, _ in jobs)] if jobs else [])
        real(jobs, count)

    monkeypatch.setattr(gram, "_run_in_threads", run)
    given = operands(torch.float32)
    check(gram_on_host(given), given)
    if threads == 1:
        assert sizes == []  # each product is made at once
    else:
        largest = max(t.numel() for t in given)
        assert max(sizes) <= held + largest
        assert len(sizes) == {0: 5, 30_000: 3, 10**9: 1}[held]


def test_the_same_to_the_bit_with_any_number_of_threads() -> None:
    """From the size on at which products wait; smaller ones are PyTorch's with several threads."""
    rows = torch.randn(1, 1, 180, 3000, generator=torch.Generator().manual_seed(1))
    assert rows.shape[2] * rows.numel() >= gram._LARGE
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found += gram_on_host([rows], 0.3)
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_threads_of_numpy_are_as_many_as_before() -> None:
    libraries = gram._numpy_libraries()
    before = [library.get_num_threads() for library in libraries]
    limit = gram._OneThreadEach()
    with limit:
        with limit:
            pass
        assert all(library.get_num_threads() == 1 for library in libraries)
    assert [library.get_num_threads() for library in libraries] == before


def test_threads_of_numpy_are_as_many_as_before_after_an_error() -> None:
    libraries = gram._numpy_libraries()
    before = [library.get_num_threads() for library in libraries]
    with pytest.raises(ZeroDivisionError), gram._one_thread_each:
        raise ZeroDivisionError
    assert [library.get_num_threads() for library in libraries] == before


def test_several_learners_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "_LARGE", 0)
    libraries = gram._numpy_libraries()
    counts, given = [library.get_num_threads() for library in libraries], operands(torch.float32)

    def learn(_: int) -> list[Tensor]:
        torch.set_num_threads(2)
        return gram_on_host(given)

    before = torch.get_num_threads()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(learn, range(20)):
            check(found, given)
    torch.set_num_threads(before)
    assert [library.get_num_threads() for library in libraries] == counts


@pytest.mark.usefixtures("threads")
def test_numpy_does_not_warn_of_infinite_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "_LARGE", 0)
    rows = torch.full((1, 1, 140, 140), 1e30)
    with np.errstate(all="raise"):
        (found,) = gram_on_host([rows], 1.0)
    assert not found.isfinite().any()


@pytest.mark.usefixtures("threads")
def test_half_precision_is_left_to_pytorch() -> None:
    rows = torch.randn(3, 1, 5, 7, dtype=torch.bfloat16)
    (found,) = gram_on_host([rows], 1.0)
    exact = torch.einsum("bgil,bgjl->gij", rows.double(), rows.double())
    assert_close(found.double(), exact, rtol=0.02, atol=0.1)
