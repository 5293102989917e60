"""The guarded linear algebra, against torch.linalg in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import EXACT, SINGLE_INVERSE_AT_1E7, relative_error
from torch import Tensor
from torch.testing import assert_close

from ocar.accel import linalg
from ocar.errors import NumericalError

EPSILON = torch.finfo(torch.float32).eps
FORMS = ["plain", "host"]


def eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def random_psd(groups: int, size: int, *, rank: int | None = None, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(groups, size, rank or size, generator=generator, dtype=torch.float64)
    return root @ root.mT


def conditioned(size: int, condition: float, *, groups: int = 1, seed: int = 0) -> Tensor:
    """Symmetric matrices with eigenvalues from 1 down to 1/condition."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(groups, size, size, generator=generator, dtype=torch.float64)
    vectors, _ = torch.linalg.qr(noise)
    values = torch.logspace(0, -math.log10(condition), size, dtype=torch.float64)
    matrix = (vectors * values) @ vectors.mT
    return (matrix + matrix.mT) / 2


# --- damping ------------------------------------------------------------------------------------


def test_add_to_diagonal_leaves_its_argument_alone() -> None:
    matrix = torch.zeros(2, 3, 3)
    damped = linalg.add_to_diagonal(matrix, torch.tensor([1.0, 2.0]))
    assert_close(damped, torch.stack([torch.eye(3), 2 * torch.eye(3)]))
    assert_close(linalg.add_to_diagonal(matrix, 3.0), 3 * torch.eye(3).expand(2, 3, 3))
    assert_close(
        linalg.add_to_diagonal(matrix, torch.tensor(3.0)), 3 * torch.eye(3).repeat(2, 1, 1)
    )
    assert not matrix.any()


# --- inverses -----------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 6),
    rank=st.integers(1, 6),
    damping=st.sampled_from([1e-3, 0.1, 10.0]),
    seed=st.integers(0, 1000),
)
def test_the_guarded_inverse_is_the_dense_inverse(
    groups: int, size: int, rank: int, damping: float, seed: int
) -> None:
    matrix = random_psd(groups, size, rank=rank, seed=seed)
    before = matrix.clone()
    expected = torch.linalg.inv(matrix + damping * eye(size))
    for level in (damping, torch.full((groups,), damping, dtype=torch.float64)):
        assert_close(linalg.guarded_inverse(matrix, level, name="x"), expected, **EXACT)
        for form in FORMS:
            damped = linalg.add_to_diagonal(matrix, level)
            inverse, failed = linalg.inverse.implementations[form](damped)
            assert not failed
            assert_close(inverse, expected, **EXACT)
    assert torch.equal(matrix, before)


def test_each_of_a_stack_is_damped_by_its_own_amount() -> None:
    matrix = random_psd(3, 4)
    levels = torch.tensor([0.1, 7.0, 1e-3], dtype=torch.float64)
    inverse = linalg.guarded_inverse(matrix, levels, name="x")
    for one, level, result in zip(matrix, levels, inverse, strict=True):
        assert_close(result, torch.linalg.inv(one + level * eye(4)), **EXACT)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("size", [10, 160])
def test_single_precision_against_double(form: str, size: int, condition: float) -> None:
    """The error grows as the condition number does, and is 20 % at most at 1e7."""
    matrix = linalg.add_to_diagonal(conditioned(size, condition), 1 / condition).float()
    inverse, failed = linalg.inverse.implementations[form](matrix)
    assert not failed
    assert inverse.dtype == torch.float32
    error = relative_error(inverse, torch.linalg.inv(matrix.double()))
    assert error < max(3 * EPSILON, SINGLE_INVERSE_AT_1E7 * condition / 1e7)


@pytest.mark.parametrize("size", [10, 40, 160])
def test_both_implementations_are_about_as_good(size: int) -> None:
    matrix = linalg.add_to_diagonal(conditioned(size, 1e6), 1e-6).float()
    expected = torch.linalg.inv(matrix.double())
    plain, host = (linalg.inverse.implementations[form](matrix)[0] for form in FORMS)
    assert relative_error(plain, expected) < 2 * relative_error(host, expected) + 1e-6


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_neither_small_nor_large_numbers_are_a_failure(form: str, scale: float) -> None:
    matrix = (linalg.add_to_diagonal(random_psd(1, 5), 0.1) * scale).float()
    inverse, failed = linalg.inverse.implementations[form](matrix)
    assert not failed
    assert relative_error(inverse, torch.linalg.inv(matrix.double())) < 1e-3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [(0, 0), (1, 0), (2, 1), (2, 2)])
def test_a_number_that_is_not_finite_fails(
    form: str, place: tuple[int, int], bad: float, dtype: torch.dtype
) -> None:
    matrix = torch.eye(3, dtype=dtype)[None].repeat(2, 1, 1)
    row, column = place
    matrix[1, row, column] = matrix[1, column, row] = bad
    _, failed = linalg.inverse.implementations[form](matrix)
    assert failed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_bad_matrix_of_a_stack_fails_it(form: str, index: int) -> None:
    matrix = linalg.add_to_diagonal(random_psd(3, 4), 0.1)
    matrix[index] = -eye(4)
    _, failed = linalg.inverse.implementations[form](matrix)
    assert failed


def test_a_damping_that_is_large_enough_helps() -> None:
    matrix = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))[None]
    with pytest.raises(NumericalError):
        linalg.guarded_inverse(matrix, 0.5, name="x")
    inverse = linalg.guarded_inverse(matrix, 1.5, name="x")
    assert_close(inverse[0], torch.diag(torch.tensor([1 / 2.5, 1 / 0.5], dtype=torch.float64)))


@pytest.mark.parametrize("sign", [1, -1])  # -1: not positive definite, which raises
@pytest.mark.parametrize("damping", [0.1, torch.tensor([0.1, 0.7])])
def test_an_inverse_leaves_its_argument_alone(sign: int, damping: float | Tensor) -> None:
    matrix = sign * random_psd(2, 5)
    before = matrix.clone()
    with nullcontext() if sign == 1 else pytest.raises(NumericalError):
        linalg.guarded_inverse(matrix, damping, name="m")
    assert torch.equal(matrix, before)


# --- Cholesky factors ---------------------------------------------------------------------------


@pytest.fixture
def cholesky_dtypes(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The precisions in which a Cholesky factorisation was tried."""
    tried = []
    real = torch.linalg.cholesky_ex

    def watched(matrix: Tensor) -> tuple[Tensor, Tensor]:
        tried.append(matrix.dtype)
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", watched)
    return tried


def _nearly_singular() -> Iterator[Tensor]:
    """Positive definite matrices in float32; how these are rounded depends on the machine."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        vectors, _ = torch.linalg.qr(torch.randn(40, 40, generator=generator, dtype=torch.float64))
        values = torch.full((40,), 1 / 4e7, dtype=torch.float64)
        values[-3:] = 1
        matrix = ((vectors * values) @ vectors.mT)[None].float()
        if float(torch.linalg.eigvalsh(matrix.double()).min()) > 0:
            yield matrix


def test_float64_is_tried_where_float32_fails(cholesky_dtypes: list[torch.dtype]) -> None:
    """A matrix that is positive definite, but not by the rounding of float32."""
    matrix = next(m for m in _nearly_singular() if torch.linalg.cholesky_ex(m).info.any())
    cholesky_dtypes.clear()
    factor = linalg.cholesky(matrix)
    assert cholesky_dtypes == [torch.float32, torch.float64]
    assert factor is not None
    assert factor.dtype == torch.float32
    assert_close(factor @ factor.mT, matrix, rtol=1e-5, atol=1e-6)


def test_a_damping_that_float32_would_lose_is_added_in_float64() -> None:
    """Of rank one without any rounding; the damping is less than one digit of the diagonal."""
    root = torch.tensor([[2.0], [4.0], [8.0], [16.0]])
    matrix, damping = (root @ root.mT)[None], 1e-8
    assert linalg.cholesky(linalg.add_to_diagonal(matrix, damping)) is None
    for level in (damping, torch.tensor([damping])):
        inverse = linalg.guarded_inverse(matrix, level, name="x")
        assert inverse.dtype == torch.float32
        expected = torch.linalg.inv(matrix.double() + damping * eye(4))
        assert relative_error(inverse, expected) < 1e-5


def test_float64_is_not_tried_where_float32_works(cholesky_dtypes: list[torch.dtype]) -> None:
    factor = linalg.cholesky(linalg.add_to_diagonal(random_psd(1, 4), 0.1).float())
    assert factor is not None
    assert factor.dtype == torch.float32
    assert cholesky_dtypes == [torch.float32]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_number_that_is_read_may_be_infinite(bad: float) -> None:
    """Only the diagonal of the factor is looked at."""
    for row in range(70):  # more than one block of the library
        for column in range(0, row + 1, 7):
            matrix = torch.eye(70).unsqueeze(0)
            matrix[0, row, column] = bad
            assert linalg.cholesky(matrix) is None


def test_only_the_lower_triangle_is_read() -> None:
    matrix = torch.tensor([[[2.0, 9.0], [1.0, 3.0]]], dtype=torch.float64)
    whole = torch.tensor([[[2.0, 1.0], [1.0, 3.0]]], dtype=torch.float64)
    for function in (partial(linalg.guarded_inverse, damping=0.1), linalg.eigen):
        assert_close(function(matrix, name="m"), function(whole, name="m"))


@pytest.mark.parametrize("groups", [1, 3])
def test_solving_from_the_right(groups: int) -> None:
    matrix = linalg.add_to_diagonal(random_psd(groups, 5), 0.1)
    b = torch.randn(groups, 4, 5, dtype=torch.float64)
    factor = torch.linalg.cholesky(matrix)
    assert_close(linalg.solve_right(factor, b), b @ torch.linalg.inv(matrix), **EXACT)


# --- triangular inverses ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 63, 64, 90, 126, 128, 180, 194, 360])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("by_columns", [True, False])
def test_triangular_inverse(size: int, groups: int, by_columns: bool) -> None:
    factor = torch.linalg.cholesky(conditioned(size, 1e3, groups=groups, seed=size))
    given = factor.mT.contiguous().mT if by_columns else factor.contiguous()
    result = linalg.triangular_inverse(given)
    assert_close(result, torch.linalg.inv(factor), rtol=1e-9, atol=1e-9)
    assert not result.triu(1).any()
    assert_close(given, factor, rtol=0, atol=0)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", [7, 90, 256])
def test_the_root_of_an_inverse(size: int, groups: int) -> None:
    matrix = conditioned(size, 1e3, groups=groups)
    root, failed = linalg.inverse_root(matrix)
    assert not failed
    assert_close(root.mT @ root, torch.linalg.inv(matrix), rtol=1e-8, atol=1e-8)
    assert not root.triu(1).any()


def test_joining_blocks_is_no_worse_than_substitution() -> None:
    """At a condition of 1e7 both lose digits in single precision; joining loses no more."""
    matrix = conditioned(720, 1e7)
    true = torch.linalg.inv(matrix)
    joined, failed = linalg.inverse_root(matrix.float())
    assert not failed
    factor = torch.linalg.cholesky(matrix.float())
    root = torch.linalg.solve_triangular(factor, torch.eye(720)[None], upper=False)
    inverses = [(m.mT @ m).double() for m in (joined, root)]
    errors = [(m - true).norm() / true.norm() for m in inverses]
    assert errors[0] < 1.2 * errors[1]
    # What matters is the step: high curvature must not be taken for low.
    left = matrix[0] @ inverses[0][0] - eye(720)
    assert left.norm(p=2) / 720**0.5 < 0.5


def test_a_root_that_does_not_exist_is_reported() -> None:
    matrix = eye(130).repeat(2, 1, 1)
    assert not linalg.inverse_root(matrix)[1]
    matrix[1, 100, 100] = -1
    assert linalg.inverse_root(matrix)[1]


# --- eigenvectors -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, derandomize=True)
@given(groups=st.integers(1, 3), size=st.integers(1, 6), seed=st.integers(0, 1000))
def test_eigen_decomposes(groups: int, size: int, seed: int) -> None:
    matrix = random_psd(groups, size, rank=max(1, size - 1), seed=seed)
    values, vectors = linalg.eigen(matrix, name="x")
    assert bool((values >= 0).all())
    assert bool((values.diff() >= 0).all())
    assert_close((vectors * values.unsqueeze(-2)) @ vectors.mT, matrix, **EXACT)
    assert_close(vectors @ vectors.mT, eye(size).expand_as(matrix), **EXACT)


def test_eigen_clips_negative_eigenvalues() -> None:
    values, _ = linalg.eigen(torch.diag(torch.tensor([-1e-12, 1.0]))[None], name="x")
    assert values.tolist() == [[0.0, 1.0]]


def test_an_eigendecomposition_that_fails_is_tried_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = torch.linalg.eigh

    def fails_in_single(matrix: Tensor) -> tuple[Tensor, Tensor]:
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("did not converge")
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", fails_in_single)
    matrix = random_psd(1, 3).float()
    values, _ = linalg.eigen(matrix, name="x")
    assert_close(values, torch.linalg.eigvalsh(matrix))


def test_an_eigendecomposition_that_always_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(matrix: Tensor) -> tuple[Tensor, Tensor]:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    with pytest.raises(NumericalError, match="The curvature of layer 'fc'"):
        linalg.eigen(random_psd(1, 3), name="layer 'fc'")


# --- messages -----------------------------------------------------------------------------------


def test_a_matrix_that_is_not_positive_definite_is_named() -> None:
    with pytest.raises(NumericalError) as caught:
        linalg.guarded_inverse(-torch.eye(3)[None], 0.5, name="the inputs of layer 'fc'")
    assert str(caught.value) == (
        "The curvature of the inputs of layer 'fc' is not positive definite: size (1, 3, 3), "
        "damping 0.5, tried in float64 too. A larger damping, or inputs of smaller scale, may help."
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("function", [partial(linalg.guarded_inverse, damping=0.1), linalg.eigen])
def test_a_matrix_that_is_not_finite_is_named(
    function: partial[Tensor], bad: float, dtype: torch.dtype
) -> None:
    matrix = torch.eye(3, dtype=dtype)[None].clone()
    matrix[0, 0, 1] = matrix[0, 1, 0] = bad
    with pytest.raises(NumericalError, match=r"The curvature of layer 'fc' holds NaN or Inf"):
        function(matrix, name="layer 'fc'")
