"""The guarded linear algebra, against torch.linalg in float64."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import EXACT, SINGLE_INVERSE_AT_1E7
from torch import Tensor
from torch.testing import assert_close

from ocar.curvature import linalg
from ocar.errors import NumericalError


def random_psd(groups: int, size: int, *, rank: int | None = None, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(groups, size, rank or size, generator=generator)
    return root @ root.mT


def conditioned(size: int, condition: float) -> Tensor:
    """A matrix with eigenvalues from 1 down to 1/condition, rounded to float32."""
    vectors, _ = torch.linalg.qr(torch.randn(size, size))
    values = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), size)
    return ((vectors * values) @ vectors.mT).float()[None]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    actual, expected = actual.double(), expected.double()
    return float(torch.linalg.norm(actual - expected) / torch.linalg.norm(expected))


def test_only_the_lower_triangle_is_read():
    matrix = torch.tensor([[[2.0, 9.0], [1.0, 3.0]]], dtype=torch.float64)
    whole = torch.tensor([[[2.0, 1.0], [1.0, 3.0]]], dtype=torch.float64)
    assert_close(
        linalg.damped_inverse(matrix, 0.1, name="m"), linalg.damped_inverse(whole, 0.1, name="m")
    )
    assert_close(linalg.eigen(matrix, name="m")[0], linalg.eigen(whole, name="m")[0])


def test_add_to_diagonal_leaves_its_argument_alone():
    matrix = torch.zeros(2, 3, 3)
    damped = linalg.add_to_diagonal(matrix, torch.tensor([1.0, 2.0]))
    assert_close(damped, torch.stack([torch.eye(3), 2 * torch.eye(3)]))
    assert_close(linalg.add_to_diagonal(matrix, 3.0), 3 * torch.eye(3).expand(2, 3, 3))
    assert not matrix.any()


@pytest.mark.parametrize("sign", [1, -1])  # -1: not positive definite, which raises
@pytest.mark.parametrize("damping", [0.1, torch.tensor([0.1, 0.7])])
def test_a_factorization_leaves_its_argument_alone(sign, damping):
    matrix = sign * random_psd(2, 5)
    before = matrix.clone()
    for function in (linalg.damped_factor, linalg.damped_inverse):
        with nullcontext() if sign == 1 else pytest.raises(NumericalError):
            function(matrix, damping, name="m")
        assert torch.equal(matrix, before)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 6),
    rank=st.integers(1, 6),
    damping=st.sampled_from([1e-3, 0.1, 10.0]),
    seed=st.integers(0, 1000),
)
def test_damped_inverse_equals_the_dense_inverse(groups, size, rank, damping, seed):
    matrix = random_psd(groups, size, rank=rank, seed=seed)
    expected = torch.linalg.inv(matrix + damping * torch.eye(size))
    assert_close(linalg.damped_inverse(matrix, damping, name="x"), expected, **EXACT)
    levels = torch.full((groups,), damping)
    assert_close(linalg.damped_inverse(matrix, levels, name="x"), expected, **EXACT)


def test_damped_inverse_damps_each_group_by_its_own_amount():
    matrix = random_psd(2, 3)
    inverse = linalg.damped_inverse(matrix, torch.tensor([0.1, 7.0]), name="x")
    assert_close(inverse[0], torch.linalg.inv(matrix[0] + 0.1 * torch.eye(3)), **EXACT)
    assert_close(inverse[1], torch.linalg.inv(matrix[1] + 7.0 * torch.eye(3)), **EXACT)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(groups=st.integers(1, 3), size=st.integers(1, 6), seed=st.integers(0, 1000))
def test_eigen_decomposes(groups, size, seed):
    matrix = random_psd(groups, size, rank=max(1, size - 1), seed=seed)
    values, vectors = linalg.eigen(matrix, name="x")
    assert bool((values >= 0).all())
    assert bool((values.diff() >= 0).all())
    assert_close((vectors * values.unsqueeze(-2)) @ vectors.mT, matrix, **EXACT)
    assert_close(vectors @ vectors.mT, torch.eye(size).expand_as(matrix), **EXACT)


def test_eigen_clips_negative_eigenvalues():
    values, _ = linalg.eigen(torch.diag(torch.tensor([-1e-12, 1.0]))[None], name="x")
    assert values.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("g_dim", [None, 2])
def test_factored_damping_is_pi_times_the_root(g_dim):
    a, g = random_psd(2, 3), random_psd(2, 4, seed=1)
    damping_a, damping_g = linalg.factored_damping(a, g, 0.3, g_dim=g_dim)
    for k in range(2):
        pi = ((a[k].trace() / 3) / (g[k].trace() / (g_dim or 4))) ** 0.5
        assert_close(damping_a[k], pi * 0.3**0.5, **EXACT)
        assert_close(damping_g[k], 0.3**0.5 / pi, **EXACT)


@pytest.mark.parametrize("zero", ["a", "g", "both"])
def test_a_factor_of_zeros_has_pi_one(zero):
    a = torch.zeros(1, 3, 3) if zero in ("a", "both") else random_psd(1, 3)
    g = torch.zeros(1, 2, 2) if zero in ("g", "both") else random_psd(1, 2)
    for level in linalg.factored_damping(a, g, 0.09):
        assert_close(level, torch.tensor([0.3]), **EXACT)


def test_pi_is_found_for_each_group():
    a = torch.stack([torch.zeros(3, 3), random_psd(1, 3)[0]])
    g = random_psd(2, 2, seed=1)
    damping_a, _ = linalg.factored_damping(a, g, 0.04)
    assert_close(damping_a[0], torch.tensor(0.2), **EXACT)
    pi = ((a[1].trace() / 3) / (g[1].trace() / 2)) ** 0.5
    assert_close(damping_a[1], 0.2 * pi, **EXACT)


@pytest.mark.parametrize("size", [10, 40, 160])
def test_single_precision_at_condition_1e7(size):
    matrix = conditioned(size, 1e7)
    inverse = linalg.damped_inverse(matrix, 0.0, name="x")
    expected = torch.linalg.inv(matrix.double())
    assert inverse.dtype == torch.float32
    assert relative_error(inverse, expected) < SINGLE_INVERSE_AT_1E7


@pytest.fixture
def cholesky_dtypes(monkeypatch):
    """The precisions in which a Cholesky factorization was tried."""
    tried = []
    real = torch.linalg.cholesky_ex

    def watched(matrix: Tensor) -> tuple[Tensor, Tensor]:
        tried.append(matrix.dtype)
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", watched)
    return tried


def test_float64_is_tried_where_float32_fails(cholesky_dtypes):
    # Of rank one without any rounding; in float32 the damping is lost beside the diagonal.
    root = torch.tensor([[2.0], [4.0], [8.0], [16.0]])
    matrix, damping = (root @ root.mT)[None].float(), 1e-8
    inverse = linalg.damped_inverse(matrix, damping, name="x")
    assert cholesky_dtypes == [torch.float32, torch.float64]
    assert inverse.dtype == torch.float32
    expected = torch.linalg.inv(matrix.double() + damping * torch.eye(4))
    assert relative_error(inverse, expected) < 1e-5


def test_float64_is_not_tried_where_float32_works(cholesky_dtypes):
    linalg.damped_inverse(random_psd(1, 4).float(), 0.1, name="x")
    assert cholesky_dtypes == [torch.float32]


def test_what_is_not_positive_definite_is_named():
    with pytest.raises(NumericalError) as caught:
        linalg.damped_inverse(-torch.eye(3)[None], 0.5, name="the inputs of layer 'fc'")
    assert str(caught.value) == (
        "The curvature of the inputs of layer 'fc' is not positive definite: size (1, 3, 3), "
        "damping 0.5, tried in float64 too. A larger damping, or inputs of smaller scale, may help."
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("function", [partial(linalg.damped_inverse, damping=0.1), linalg.eigen])
def test_what_is_not_finite_is_named(function, bad, dtype):
    matrix = torch.eye(3, dtype=dtype)[None].clone()
    matrix[0, 0, 1] = matrix[0, 1, 0] = bad
    with pytest.raises(NumericalError, match=r"The curvature of layer 'fc' holds NaN or Inf"):
        function(matrix, name="layer 'fc'")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_number_that_is_read_may_be_infinite(bad: float) -> None:
    """The factor is looked at on its diagonal only."""
    for row in range(70):  # more than one block of the library
        for column in range(0, row + 1, 7):
            matrix = torch.eye(70).unsqueeze(0)
            matrix[0, row, column] = bad
            with pytest.raises(NumericalError, match="holds NaN or Inf"):
                linalg.damped_factor(matrix, 0.1, name="layer 'fc'")


def test_an_eigendecomposition_that_fails_is_tried_in_float64(monkeypatch):
    real = torch.linalg.eigh

    def fails_in_single(matrix: Tensor) -> tuple[Tensor, Tensor]:
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("did not converge")
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", fails_in_single)
    matrix = random_psd(1, 3).float()
    values, _ = linalg.eigen(matrix, name="x")
    assert_close(values, torch.linalg.eigvalsh(matrix))


def test_an_eigendecomposition_that_always_fails_is_named(monkeypatch):
    def fails(matrix: Tensor) -> tuple[Tensor, Tensor]:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    with pytest.raises(NumericalError, match="The curvature of layer 'fc'"):
        linalg.eigen(random_psd(1, 3), name="layer 'fc'")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", [1, 27, 511, 512, 514, 1440])
def test_a_long_product_is_the_product(groups: int, size: int) -> None:
    a, b = torch.randn(groups, 3, size), torch.randn(groups, size, 5)
    for right in (b, b.mT.contiguous().mT):
        out = torch.empty(groups, 3, 5)
        assert linalg.long_product(a, right, out=out) is out
        assert_close(out, a @ b, rtol=1e-12, atol=1e-12)
        assert_close(linalg.long_product(a, right), a @ b, rtol=1e-12, atol=1e-12)
