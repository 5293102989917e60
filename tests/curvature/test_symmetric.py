"""Products of matrices with their own transposes: now and later, with one thread and with more."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from ocar.accel.symmetric import product, side_by_side
from torch import Tensor
from torch.testing import assert_close

from ocar.accel import symmetric

SHAPES = ((3, 5), (130, 200), (300, 150), (40, 9000), (1, 1))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def matrices(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in SHAPES]


def check(found: list[Tensor], rows: list[Tensor]) -> None:
    for one, matrix in zip(found, rows, strict=True):
        exact = 0.5 * matrix.double() @ matrix.double().mT
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}[matrix.dtype]
        assert one.dtype == matrix.dtype
        assert_close(one.double(), exact, rtol=tolerance, atol=tolerance * float(exact.max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.usefixtures("threads")
def test_products(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, turned: bool, later: bool
) -> None:
    monkeypatch.setattr(symmetric, "_LARGE", 1000)
    rows = [m.mT.contiguous().mT if turned else m for m in matrices(dtype)]
    if later:
        with side_by_side():
            found = [product(matrix, 0.5) for matrix in rows]
    else:
        found = [product(matrix, 0.5) for matrix in rows]
    check(found, rows)


@pytest.mark.parametrize("held", [0, 30_000, 10**9])
def test_what_waits_is_done_before_it_is_too_much(
    monkeypatch: pytest.MonkeyPatch, held: int, threads: int
) -> None:
    monkeypatch.setattr(symmetric, "_LARGE", 0)
    monkeypatch.setattr(symmetric, "_HELD", held)
    rows = matrices(torch.float32)
    with side_by_side():
        found = [product(matrix, 0.5) for matrix in rows]
        assert symmetric._waiting.jobs is not None
        waiting = sum(job.rows.numel() for job in symmetric._waiting.jobs)
        assert waiting <= held
        assert bool(waiting) == (threads > 1 and held > 0)
    assert symmetric._waiting.jobs is None
    check(found, rows)


def test_the_same_to_the_bit_with_any_number_of_threads() -> None:
    rows = torch.randn(180, 3000, generator=torch.Generator().manual_seed(1))
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        with side_by_side():
            found.append(product(rows, 0.3))
    torch.set_num_threads(before)
    assert rows.shape[0] * rows.numel() >= symmetric._LARGE
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_threads_of_numpy_are_as_many_as_before() -> None:
    libraries = symmetric._numpy_libraries()
    before = [library.get_num_threads() for library in libraries]
    limit = symmetric._OneThreadEach()
    with limit:
        with limit:
            pass
        assert all(library.get_num_threads() == 1 for library in libraries)
    assert [library.get_num_threads() for library in libraries] == before


def test_several_learners_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "_LARGE", 0)
    libraries = symmetric._numpy_libraries()
    threads, rows = [library.get_num_threads() for library in libraries], matrices(torch.float32)

    def learn(_: int) -> list[Tensor]:
        torch.set_num_threads(2)
        with side_by_side():
            return [product(matrix, 0.5) for matrix in rows]

    before = torch.get_num_threads()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(learn, range(20)):
            check(found, rows)
    torch.set_num_threads(before)
    assert [library.get_num_threads() for library in libraries] == threads


def test_inside_another_and_after_an_error() -> None:
    def fail() -> None:
        with side_by_side():
            assert symmetric._waiting.jobs is not outer
            raise RuntimeError("stop")

    with side_by_side():
        outer = symmetric._waiting.jobs
        with pytest.raises(RuntimeError, match="stop"):
            fail()
        assert symmetric._waiting.jobs is outer
    assert symmetric._waiting.jobs is None


@pytest.mark.usefixtures("threads")
def test_what_is_not_finite_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "_LARGE", 0)
    rows = torch.full((140, 140), 1e30, dtype=torch.float32)
    with np.errstate(all="raise"), side_by_side():
        found = product(rows, 1.0)
    assert not found.isfinite().any()
