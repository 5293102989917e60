"""Linear algebra of symmetric positive semi-definite matrices.

Matrices are stacks ``(groups, d, d)``. No function changes its arguments unless its name ends in an
underscore. The ``name`` of a matrix says in an error what it belongs to.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ocar.accel.operation import known, operation
from ocar.errors import NumericalError

_SMALL = 64  # PyTorch solves several triangular systems in one call below this size


def add_to_diagonal(matrix: Tensor, value: Tensor | float) -> Tensor:
    """``matrix + value · I``, with a number or one value a matrix, ``(groups,)``."""
    result = matrix.clone()
    diagonal = result.diagonal(dim1=-2, dim2=-1)
    diagonal += value.unsqueeze(-1) if isinstance(value, Tensor) and value.dim() else value
    return result


@operation
def inverse(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of positive definite matrices ``(groups, d, d)``, without waiting for a device.

    Returns:
        The inverse, and whether a matrix has none, a scalar of bool. Then the result is
        meaningless.
    """
    root, failed = inverse_root(matrix)
    return root.mT @ root, failed


@inverse.implementation("host", when=lambda matrix: matrix.is_cpu)
def _inverse_on_host(matrix: Tensor) -> tuple[Tensor, Tensor]:
    factor = cholesky(matrix)
    if factor is None:
        return matrix, torch.tensor(True)
    return torch.cholesky_inverse(factor), torch.tensor(False)


def inverse_root(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """L⁻¹ with M⁻¹ = L⁻ᵀL⁻¹, and whether a matrix M has none; see :func:`inverse`."""
    # By columns, as the library stores it; the matrix is symmetric.
    factor, info = torch.linalg.cholesky_ex(matrix.mT)
    root = triangular_inverse(factor)
    # The diagonal bounds the rest. It is 0 where the matrix was infinite.
    sizes = root.diagonal(dim1=-2, dim2=-1).log()
    return root, (info != 0).any() | ~sizes.sum().isfinite()


def cholesky(matrix: Tensor) -> Tensor | None:
    """The lower Cholesky factor on the host; None if the matrix is not positive definite.

    It is computed in float64 if that is needed.
    """
    for dtype in dict.fromkeys((matrix.dtype, torch.float64)):
        factor, info = torch.linalg.cholesky_ex(matrix.to(dtype))
        # A matrix with NaN may be reported as a success.
        finite = math.isfinite(float(factor.diagonal(dim1=-2, dim2=-1).sum()))
        if finite and not any(info.tolist()):
            return factor.to(matrix.dtype)
    return None


def solve_right(factor: Tensor, b: Tensor) -> Tensor:
    """``b · M⁻¹`` from the lower Cholesky factor of M; b is ``(groups, r, d)``."""
    half = torch.linalg.solve_triangular(factor.mT, b, upper=True, left=False)
    return torch.linalg.solve_triangular(factor, half, upper=False, left=False)


def triangular_inverse(factor: Tensor) -> Tensor:
    """The inverse of lower triangular matrices, mostly by products.

    Blocks on the diagonal are inverted together. Then neighbours are joined, all pairs at once:
    the inverse of [A 0; B C] is [A⁻¹ 0; −C⁻¹BA⁻¹ C⁻¹]. On a GPU products are far faster than one
    long substitution.
    """
    groups, size, _ = factor.shape
    side, count = size, 1
    while side >= _SMALL and side % 2 == 0 and groups == 1:
        side, count = side // 2, count * 2
    if count == 1 or side >= _SMALL:
        eye = torch.eye(size, dtype=factor.dtype, device=factor.device)
        return torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
    eye = torch.eye(side, dtype=factor.dtype, device=factor.device)
    blocks = _diagonal_blocks(factor, side)
    out = torch.zeros_like(factor, memory_format=torch.contiguous_format)
    solved = torch.linalg.solve_triangular(blocks, eye.expand_as(blocks), upper=False)
    _diagonal_blocks(out, side).copy_(solved)
    while side < size:
        first, second = (_diagonal_blocks(out, side, start=at, step=2) for at in (0, 1))
        below = _diagonal_blocks(factor, side, step=2, down=1)
        place = _diagonal_blocks(out, side, step=2, down=1)
        torch.baddbmm(place, second, torch.bmm(below, first), beta=0, alpha=-1, out=place)
        side *= 2
    return out


def _diagonal_blocks(
    matrix: Tensor, side: int, *, start: int = 0, step: int = 1, down: int = 0
) -> Tensor:
    """Every step-th diagonal block of one matrix ``(1, d, d)``, or those below them: a view."""
    rows, columns = matrix.stride()[1:]
    count = matrix.shape[-1] // (side * step)
    offset = matrix.storage_offset() + side * ((start + down) * rows + start * columns)
    jump = side * step * (rows + columns)
    return matrix.as_strided((count, side, side), (jump, rows, columns), offset)


def guarded_inverse(matrix: Tensor, damping: Tensor | float, *, name: str) -> Tensor:
    """``(matrix + damping · I)⁻¹``, with a number or one a matrix, ``(groups,)``.

    Raises:
        NumericalError: There is no finite inverse, and the device need not be waited for to know.
    """
    result, failed = inverse(add_to_diagonal(matrix, damping))
    if known(failed):  # the damping may be lost by rounding
        result, failed = inverse(add_to_diagonal(matrix.double(), damping))
        result = result.to(matrix.dtype)
    if known(failed):
        raise NumericalError(not_invertible(matrix, damping, name=name))
    return result


def not_invertible(matrix: Tensor, damping: Tensor | float, *, name: str) -> str:
    """Why a matrix has no inverse, and what helps."""
    reason = "is not positive definite" if bool(matrix.isfinite().all()) else "holds NaN or Inf"
    low = float(torch.as_tensor(damping).min())
    return (
        f"The curvature of {name} {reason}: size {tuple(matrix.shape)}, damping {low:.3g}, "
        "tried in float64 too. A larger damping, or inputs of smaller scale, may help."
    )


def eigen(matrix: Tensor, *, name: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``(groups, d)``, ascending and clipped at 0, and eigenvectors, one a column.

    Raises:
        NumericalError: The matrix is not finite, or the iteration fails even in float64.
    """
    for dtype in dict.fromkeys((matrix.dtype, torch.float64)):
        if not bool(matrix.isfinite().all()):
            break
        try:
            values, vectors = torch.linalg.eigh(matrix.to(dtype))
        except torch.linalg.LinAlgError:
            continue
        if bool(vectors.isfinite().all()):
            return values.clamp_min(0).to(matrix.dtype), vectors.to(matrix.dtype)
    raise NumericalError(not_invertible(matrix, 0.0, name=name))
