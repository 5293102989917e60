"""The inverse that waits for nothing: against float64, and what it says when it fails."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ocar.curvature.linalg import damped_inverse, try_damped_inverse
from tolerances import EXACT, SINGLE_INVERSE_AT_1E7
from torch import Tensor
from torch.testing import assert_close

EPSILON = torch.finfo(torch.float32).eps


def random_psd(groups: int, size: int, *, rank: int | None = None, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(groups, size, rank or size, generator=generator)
    return root @ root.mT


def conditioned(size: int, condition: float, *, seed: int = 0) -> Tensor:
    """A matrix with eigenvalues from 1 down to 1/condition, in float64."""
    generator = torch.Generator().manual_seed(seed)
    vectors, _ = torch.linalg.qr(torch.randn(size, size, generator=generator))
    values = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), size)
    return ((vectors * values) @ vectors.mT)[None]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    actual, expected = actual.double(), expected.double()
    return float(torch.linalg.norm(actual - expected) / torch.linalg.norm(expected))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 6),
    rank=st.integers(1, 6),
    damping=st.sampled_from([1e-3, 0.1, 10.0]),
    seed=st.integers(0, 1000),
)
def test_it_is_the_dense_inverse(groups, size, rank, damping, seed):
    matrix = random_psd(groups, size, rank=rank, seed=seed)
    before = matrix.clone()
    expected = torch.linalg.inv(matrix + damping * torch.eye(size))
    for level in (damping, torch.full((groups,), damping)):
        inverse, failed = try_damped_inverse(matrix, level)
        assert failed.shape == ()
        assert failed.dtype == torch.bool
        assert not failed
        assert_close(inverse, expected, **EXACT)
        assert_close(inverse, damped_inverse(matrix, level, name="x"), **EXACT)
    assert torch.equal(matrix, before)


def test_each_of_a_stack_is_damped_by_its_own_amount():
    matrix = random_psd(3, 4)
    levels = torch.tensor([0.1, 7.0, 1e-3])
    inverse, failed = try_damped_inverse(matrix, levels)
    assert not failed
    for one, level, result in zip(matrix, levels, inverse, strict=True):
        assert_close(result, torch.linalg.inv(one + level * torch.eye(4)), **EXACT)


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("size", [10, 160])
def test_single_precision_against_double(size, condition, record_property):
    """The error grows as the condition number does, and is 20 % at most at 1e7."""
    matrix = conditioned(size, condition).float()
    damping = 1 / condition
    inverse, failed = try_damped_inverse(matrix, damping)
    expected = torch.linalg.inv(matrix.double() + damping * torch.eye(size))
    error = relative_error(inverse, expected)
    record_property("relative_error", error)
    print(f"size {size}, condition {condition:.0e}: relative error {error:.1e}")
    assert not failed
    assert inverse.dtype == torch.float32
    assert error < max(3 * EPSILON, SINGLE_INVERSE_AT_1E7 * condition / 1e7)


@pytest.mark.parametrize("size", [10, 40, 160])
def test_it_is_as_good_as_the_guarded_inverse(size):
    """Half of the work, the same digits: no more than twice the error of cholesky_inverse."""
    matrix = conditioned(size, 1e6).float()
    expected = torch.linalg.inv(matrix.double() + 1e-6 * torch.eye(size))
    ours, failed = try_damped_inverse(matrix, 1e-6)
    assert not failed
    theirs = damped_inverse(matrix, 1e-6, name="x")
    assert relative_error(ours, expected) < 2 * relative_error(theirs, expected) + 1e-6


def test_an_indefinite_matrix_fails():
    _, failed = try_damped_inverse(torch.diag(torch.tensor([1.0, -1.0]))[None], 0.5)
    assert failed


def test_a_damping_that_is_large_enough_helps():
    inverse, failed = try_damped_inverse(torch.diag(torch.tensor([1.0, -1.0]))[None], 1.5)
    assert not failed
    assert_close(inverse[0], torch.diag(torch.tensor([1 / 2.5, 1 / 0.5])), **EXACT)


def test_a_singular_matrix_without_damping_fails():
    _, failed = try_damped_inverse(torch.zeros(1, 3, 3), 0.0)
    assert failed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [(0, 0), (1, 0), (2, 1), (2, 2)])
def test_what_is_not_finite_fails(place, bad, dtype):
    matrix = torch.eye(3, dtype=dtype)[None].repeat(2, 1, 1)
    row, column = place
    matrix[1, row, column] = matrix[1, column, row] = bad
    _, failed = try_damped_inverse(matrix, 0.1)
    assert failed


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_damping_that_is_not_finite_fails(bad):
    _, failed = try_damped_inverse(torch.eye(3)[None], torch.tensor([bad]))
    assert failed


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_bad_matrix_of_a_stack_fails_it(index):
    matrix = random_psd(3, 4)
    matrix[index] = -torch.eye(4)
    _, failed = try_damped_inverse(matrix, 0.1)
    assert failed


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_neither_small_nor_large_numbers_are_a_failure(scale):
    matrix = (random_psd(1, 5) * scale).float()
    damping = 0.1 * scale
    inverse, failed = try_damped_inverse(matrix, damping)
    assert not failed
    expected = torch.linalg.inv(matrix.double() + damping * torch.eye(5))
    assert relative_error(inverse, expected) < 1e-3
