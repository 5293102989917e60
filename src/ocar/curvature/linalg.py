"""Guarded linear algebra for symmetric positive semi-definite matrices.

Matrices come as stacks of shape ``(groups, d, d)``; ``groups`` is 1 except for
grouped convolutions. Every function is pure: when it returns, no argument has changed.

Each factorization is guarded in the same way: damp, try in the given precision,
try again in float64, and raise a :class:`~ocar.errors.NumericalError` that names
the layer when nothing helps. Only the lower triangle of a matrix is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ocar.errors import NumericalError


def add_to_diagonal(matrix: Tensor, value: Tensor | float) -> Tensor:
    """``matrix + value · I``.

    Args:
        matrix: Shape ``(..., d, d)``.
        value: A number, or a tensor of shape ``(...)``.
    """
    result = matrix.clone()
    diagonal = result.diagonal(dim1=-2, dim2=-1)
    diagonal += value.unsqueeze(-1) if isinstance(value, Tensor) else value
    return result


def solve_right(factor: Tensor, b: Tensor) -> Tensor:
    """``b · M⁻¹`` from the lower Cholesky factor of M.

    Args:
        factor: Shape ``(groups, d, d)``.
        b: Shape ``(groups, r, d)``.
    """
    half = torch.linalg.solve_triangular(factor.mT, b, upper=True, left=False)
    return torch.linalg.solve_triangular(factor, half, upper=False, left=False)


def long_product(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``a · b``, a long sum in a few parts that an accelerator works on at the same time.

    Each tile of a product is the work of one processor, which goes along the whole sum. Where
    ``a`` has few rows there are few tiles, and most processors would look on.

    Args:
        a: Shape ``(groups, r, d)``.
        b: Shape ``(groups, d, n)``.
        out: Where to write it, ``(groups, r, n)``.
    """
    groups, _, size = a.shape
    parts = next((p for p in (8, 4, 2) if size % p == 0 and size // p >= _SHORT), 1)
    if groups > 1 or parts == 1:
        return torch.bmm(a, b, out=out)
    left = a[0].unflatten(1, (parts, -1)).transpose(0, 1)
    products = torch.bmm(left, b[0].unflatten(0, (parts, -1)))
    return torch.sum(products, dim=0, keepdim=True, out=out)


_SHORT = 256  # terms that one processor may go along


def mean_trace(matrix: Tensor, dim: Tensor | int) -> Tensor:
    """Trace over dimension, ``tr(matrix) / dim``, for a stack ``(groups, d, d)``.

    Args:
        matrix: Shape ``(groups, d, d)``.
        dim: The dimension that counts. It is less than ``d`` where some rows
            are padding, as in an output layer with unseen classes.
    """
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1) / dim


def factored_damping(
    a: Tensor,
    g: Tensor,
    damping: Tensor | float,
    *,
    a_dim: int | None = None,
    g_dim: Tensor | int | None = None,
) -> tuple[Tensor, Tensor]:
    """Split a damping τ over two Kronecker factors: ``(π√τ, √τ/π)``.

    π = √((tr A / dim A) / (tr G / dim G)) balances the two (Martens & Grosse
    2015, section 6.3). A factor that is all zeros has no scale to balance, and
    π is 1 then.

    Args:
        a: Shape ``(groups, d_in, d_in)``.
        g: Shape ``(groups, d_out, d_out)``.
        damping: τ.
        a_dim: How many rows ``a`` would have, where some that are 0 are left out.
        g_dim: How many rows of ``g`` count; all by default.

    Returns:
        The damping of ``a`` and of ``g``, each of shape ``(groups,)``.
    """
    scale_a = mean_trace(a, a.shape[-1] if a_dim is None else a_dim)
    scale_g = mean_trace(g, g.shape[-1] if g_dim is None else g_dim)
    if a.is_cpu and len(a) == 1:  # a few numbers are faster without tensors
        parts = _split_damping(float(scale_a), float(scale_g), float(damping))
        return a.new_tensor(parts[:1]), a.new_tensor(parts[1:])
    balanced = (scale_a > 0) & (scale_g > 0)
    ratio = torch.where(balanced, scale_a, 1) / torch.where(balanced, scale_g, 1)
    pi = ratio.sqrt()
    root = damping.to(a.dtype).sqrt() if isinstance(damping, Tensor) else math.sqrt(damping)
    return pi * root, root / pi


def _split_damping(scale_a: float, scale_g: float, damping: float) -> tuple[float, float]:
    """As :func:`factored_damping`, of numbers."""
    pi = math.sqrt(scale_a / scale_g) if scale_a > 0 and scale_g > 0 else 1.0
    return pi * math.sqrt(damping), math.sqrt(damping) / pi


def damped_inverse(matrix: Tensor, damping: Tensor | float, *, name: str) -> Tensor:
    """``(matrix + damping · I)⁻¹`` by Cholesky.

    Args:
        matrix: Symmetric positive semi-definite, shape ``(groups, d, d)``.
        damping: A number, or shape ``(groups,)``.
        name: What the matrix belongs to, for the error message.

    Raises:
        NumericalError: The damped matrix has no finite inverse, even in float64.
    """
    factor = damped_factor(matrix, damping, name=name)
    return torch.cholesky_inverse(factor)


def try_damped_inverse(matrix: Tensor, damping: Tensor | float) -> tuple[Tensor, Tensor]:
    """``(matrix + damping · I)⁻¹`` by Cholesky in the given precision, waiting for nothing.

    What :func:`damped_inverse` does with a look at the result, this leaves to
    the caller, so that it can be part of a captured graph.

    Args:
        matrix: Symmetric positive semi-definite, shape ``(groups, d, d)``.
        damping: A number, or shape ``(groups,)``.

    Returns:
        The inverse, and whether it failed, a scalar of bool; then the inverse is meaningless.
    """
    inverse = add_to_diagonal(matrix, damping)
    info = cholesky_inverse_into(inverse)
    # The diagonal bounds the rest. It is 0 where the matrix was infinite.
    sizes = inverse.diagonal(dim1=-2, dim2=-1).log()
    return inverse, (info != 0).any() | ~sizes.sum().isfinite()


def cholesky_inverse_into(matrix: Tensor, *, half: bool = False) -> Tensor:
    """Overwrite positive definite matrices with their inverses, waiting for nothing.

    Args:
        matrix: Shape ``(groups, d, d)``, contiguous.
        half: Leave L⁻¹ instead, with M⁻¹ = L⁻ᵀL⁻¹.

    Returns:
        What the factorizations reported, ``(groups,)`` of int: where it is not 0, or the matrix
        was not finite, the result is meaningless.
    """
    # By columns, as the library wants it; the matrix is symmetric.
    factor, info = torch.linalg.cholesky_ex(matrix.mT)
    # Faster than cholesky_inverse, and for a stack the only one that a graph can hold.
    if half:
        triangular_inverse(factor, out=matrix)
    else:
        root = triangular_inverse(factor, out=torch.empty_like(matrix))
        torch.bmm(root.mT, root, out=matrix)
    return info


_SMALL = 64  # from this size on PyTorch does not solve a few systems in one call


def triangular_inverse(factor: Tensor, *, out: Tensor) -> Tensor:
    """The inverse of lower triangular matrices, mostly by products.

    Blocks on the diagonal are inverted together. Then neighbours are joined, all pairs at
    once: the inverse of [A 0; B C] is [A⁻¹ 0; −C⁻¹BA⁻¹ C⁻¹]. A GPU likes products far better
    than one long substitution.

    Args:
        factor: Shape ``(groups, d, d)``; what is above the diagonal must be 0.
        out: Where to write it, of the same shape, contiguous.
    """
    groups, size, _ = factor.shape
    side, count = size, 1
    while side >= _SMALL and side % 2 == 0 and groups == 1:
        side, count = side // 2, count * 2
    if count == 1 or side >= _SMALL:
        eye = torch.eye(size, dtype=factor.dtype, device=factor.device)
        solved = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
        return out.copy_(solved)
    eye = torch.eye(side, dtype=factor.dtype, device=factor.device)
    blocks = _diagonal_blocks(factor, side, 0)
    out.zero_()
    solved = torch.linalg.solve_triangular(blocks, eye.expand_as(blocks), upper=False)
    _diagonal_blocks(out, side, 0).copy_(solved)
    while side < size:
        first, second = (_diagonal_blocks(out, side, at, step=2) for at in (0, 1))
        below = _diagonal_blocks(factor, side, 0, step=2, down=1)
        place = _diagonal_blocks(out, side, 0, step=2, down=1)
        torch.baddbmm(place, second, torch.bmm(below, first), beta=0, alpha=-1, out=place)
        side *= 2
    return out


def _diagonal_blocks(
    matrix: Tensor, side: int, start: int, *, step: int = 1, down: int = 0
) -> Tensor:
    """Every step-th block of one matrix ``(1, d, d)``, or those below them: a view."""
    rows, columns = matrix.stride()[1:]
    count = matrix.shape[-1] // (side * step)
    offset = matrix.storage_offset() + side * ((start + down) * rows + start * columns)
    jump = side * step * (rows + columns)
    return matrix.as_strided((count, side, side), (jump, rows, columns), offset)


def damped_factor(matrix: Tensor, damping: Tensor | float, *, name: str) -> Tensor:
    """The lower Cholesky factor of ``matrix + damping · I``.

    Args:
        matrix: Symmetric positive semi-definite, shape ``(groups, d, d)``.
        damping: A number, or shape ``(groups,)``.
        name: What the matrix belongs to, for the error message.

    Raises:
        NumericalError: The damped matrix is not positive definite, even in float64.
    """

    def factorize(damped: Tensor) -> tuple[Tensor, ...] | None:
        factor, info = torch.linalg.cholesky_ex(damped)
        # A matrix with NaN may be reported as a success. Each number of the factor is part of the
        # diagonal one in its row.
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        return None if any(info.tolist()) or not _all_finite(diagonal) else (factor,)

    return _guarded(factorize, matrix, damping, name=name)[0]


def eigen(matrix: Tensor, *, name: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues, clipped at zero, and eigenvectors of ``matrix``.

    Args:
        matrix: Symmetric positive semi-definite, shape ``(groups, d, d)``.
        name: What the matrix belongs to, for the error message.

    Returns:
        Values ``(groups, d)``, ascending, and vectors ``(groups, d, d)``, one a column.

    Raises:
        NumericalError: The matrix is not finite or the iteration fails, even in float64.
    """

    def decompose(symmetric: Tensor) -> tuple[Tensor, ...] | None:
        if not _all_finite(symmetric):
            return None
        try:
            values, vectors = torch.linalg.eigh(symmetric)
        except torch.linalg.LinAlgError:
            return None
        return (values.clamp_min(0), vectors) if _all_finite(vectors) else None

    values, vectors = _guarded(decompose, matrix, 0.0, name=name)
    return values, vectors


def _all_finite(tensor: Tensor) -> bool:
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())


@contextmanager
def _damped(matrix: Tensor, value: Tensor | float) -> Iterator[Tensor]:
    """``matrix + value · I``; on a CPU for a while in the place of the matrix itself.

    A factorization copies what it is given, and one copy of a large matrix is enough.
    """
    if not matrix.is_cpu:
        yield add_to_diagonal(matrix, value)
        return
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    before = diagonal.clone()
    diagonal += value.unsqueeze(-1) if isinstance(value, Tensor) else value
    try:
        yield matrix
    finally:
        diagonal.copy_(before)


def _guarded(
    attempt: Callable[[Tensor], tuple[Tensor, ...] | None],
    matrix: Tensor,
    damping: Tensor | float,
    *,
    name: str,
) -> tuple[Tensor, ...]:
    """Run ``attempt`` on the damped matrix in its own precision, then in float64."""
    for dtype in dict.fromkeys((matrix.dtype, torch.float64)):
        level = damping.to(dtype) if isinstance(damping, Tensor) else damping
        with _damped(matrix.to(dtype), level) as damped:
            result = attempt(damped)
        if result is not None:
            return tuple(part.to(matrix.dtype) for part in result)
    finite = matrix.isfinite().all()
    reason = "is not positive definite" if finite else "holds NaN or Inf"
    low = float(torch.as_tensor(damping).min())
    raise NumericalError(
        f"The curvature of {name} {reason}: size {tuple(matrix.shape)}, damping {low:.3g}, "
        "tried in float64 too. A larger damping, or inputs of smaller scale, may help."
    )
