"""Inverses of triangular and of positive definite matrices, in place, against float64."""

import pytest
import torch
from ocar.curvature.linalg import cholesky_inverse_into, triangular_inverse
from torch import Tensor
from torch.testing import assert_close


def ill_conditioned(size: int, *, groups: int, condition: float) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    square = torch.randn(groups, size, size, generator=generator, dtype=torch.float64)
    q, _ = torch.linalg.qr(square)
    values = torch.logspace(0, -torch.tensor(condition).log10().item(), size, dtype=torch.float64)
    matrix = (q * values) @ q.mT
    return (matrix + matrix.mT) / 2


@pytest.mark.parametrize("size", [1, 5, 63, 64, 90, 126, 128, 180, 194, 360])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("by_columns", [True, False])
def test_triangular_inverse(size: int, groups: int, by_columns: bool) -> None:
    factor = torch.linalg.cholesky(ill_conditioned(size, groups=groups, condition=1e3))
    given = factor.mT.contiguous().mT if by_columns else factor.contiguous()
    out = torch.full_like(factor, float("nan"))
    result = triangular_inverse(given, out=out)
    assert result.data_ptr() == out.data_ptr()
    assert_close(result, torch.linalg.inv(factor), rtol=1e-9, atol=1e-9)
    assert not result.triu(1).any()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", [7, 90, 256])
def test_inverse_and_half_of_it(size: int, groups: int) -> None:
    matrix = ill_conditioned(size, groups=groups, condition=1e3)
    whole, half = matrix.clone(), matrix.clone()
    assert not cholesky_inverse_into(whole).any()
    assert not cholesky_inverse_into(half, half=True).any()
    assert_close(whole, torch.linalg.inv(matrix), rtol=1e-8, atol=1e-8)
    assert_close(half.mT @ half, whole, rtol=1e-8, atol=1e-8)


def test_single_precision_is_no_worse_than_substitution() -> None:
    """At a condition of 1e7 both lose digits; joining blocks loses no more."""
    matrix = ill_conditioned(720, groups=1, condition=1e7)
    true = torch.linalg.inv(matrix)
    joined = matrix.float()
    cholesky_inverse_into(joined)
    factor = torch.linalg.cholesky(matrix.float())
    root = torch.linalg.solve_triangular(factor, torch.eye(720), upper=False)
    errors = [(m.double() - true).norm() / true.norm() for m in (joined, root.mT @ root)]
    assert errors[0] < 1.2 * errors[1]
    # What matters is the step: high curvature must not be taken for low.
    before = matrix @ joined.double()[0] - torch.eye(720, dtype=torch.float64)
    assert before.norm(p=2) / 720**0.5 < 0.5


def test_a_failure_is_reported() -> None:
    matrix = torch.eye(130, dtype=torch.float64).repeat(2, 1, 1)
    matrix[1, 100, 100] = -1
    info = cholesky_inverse_into(matrix)
    assert (info != 0).tolist() == [False, True]
