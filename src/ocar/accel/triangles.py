"""Symmetric matrices as their upper triangles, which have about half as many numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def numbers(shape: tuple[int, ...]) -> int:
    """Numbers in the upper triangles of matrices of a shape ``(..., d, d)``."""
    *stacked, _, size = shape
    return torch.Size(stacked).numel() * size * (size + 1) // 2


def upper(matrices: Tensor) -> Tensor:
    """The upper triangles with their diagonals, flat, of matrices ``(..., d, d)``."""
    rows, columns = _places(matrices)
    return matrices[..., rows, columns].flatten()


def write_(matrices: Tensor, triangles: Tensor) -> None:
    """Replace the upper triangles of matrices ``(..., d, d)``; the numbers below them stay."""
    rows, columns = _places(matrices)
    matrices[..., rows, columns] = triangles.view(*matrices.shape[:-2], -1)


def mirror_(matrices: Tensor, triangles: Tensor) -> None:
    """Replace matrices ``(..., d, d)`` by the symmetric ones with such upper triangles."""
    write_(matrices, triangles)
    write_(matrices.mT, triangles)


def _places(matrices: Tensor) -> tuple[Tensor, Tensor]:
    size = matrices.shape[-1]
    rows, columns = torch.triu_indices(size, size, device=matrices.device)
    return rows, columns
