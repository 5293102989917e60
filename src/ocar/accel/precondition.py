"""Gradients of many layers multiplied with their inverse curvature in three kernels, on a GPU.

A layer's gradient becomes G⁻¹·∇·A⁻¹, with A⁻¹ = RᵀR and R triangular. One library call for each
product of each layer takes longer to begin than to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ocar.accel.invert import PRECISION

ROWS, COLUMNS, TERMS = 32, 64, 32
"""Of a tile: its size, and how many terms of its sums are added up at once."""

WARPS, STAGES = 4, 4
"""Groups of 32 threads that work on a tile, and how many blocks of terms are on their way to it."""


@dataclass(frozen=True)
class Place:
    """Where one gradient and its inverses lie: each in a buffer of its own kind."""

    gradient: int
    root: int
    """R of A⁻¹ = RᵀR, ``(columns, columns)``, among the inverses."""
    inverse: int
    """G⁻¹, ``(rows, rows)``, among the inverses."""
    rows: int
    columns: int


class ManyProducts:
    """Multiplies gradients that lie in one buffer.

    Args:
        places: Where.
        kernels: Those of :mod:`ocar.accel.triton.precondition`.
        device: Where the buffers are.
    """

    def __init__(
        self, places: Sequence[Place], *, kernels: ModuleType, device: torch.device
    ) -> None:
        self._kernels = kernels
        tables = [], [], []  # type: tuple[list[list[int]], ...]
        for place in places:
            rows, columns = place.rows, place.columns
            at = place.gradient
            for row in range(-(-rows // ROWS)):
                for column in range(-(-columns // COLUMNS)):
                    first, last = column * COLUMNS, min(columns, (column + 1) * COLUMNS)
                    wide, high = [rows, columns, columns, row, column], [rows, columns, rows]
                    tables[0].append([at, place.root, at, *wide, 0, -(-last // TERMS)])
                    tables[1].append(
                        [place.inverse, at, at, *high, row, column, 0, -(-rows // TERMS)]
                    )
                    tables[2].append(
                        [at, place.root, at, *wide, first // TERMS, -(-columns // TERMS)]
                    )
        for table in tables:  # the longest first
            table.sort(key=lambda task: task[8] - task[9])
        self._tables = [torch.tensor(t, dtype=torch.int32, device=device) for t in tables]

    def multiply(self, gradients: Tensor, inverses: Tensor) -> Tensor:
        """G⁻¹·∇·RᵀR of each gradient.

        Args:
            gradients: The buffer of gradients.
            inverses: The buffer that R and G⁻¹ are in.

        Returns:
            A buffer like that of the gradients.
        """
        across, down, again = self._tables
        half = self._product(gradients, inverses, across, turned=True)
        half = self._product(inverses, half, down, like=gradients)
        return self._product(half, inverses, again, like=gradients)

    def _product(
        self,
        left: Tensor,
        right: Tensor,
        tasks: Tensor,
        *,
        turned: bool = False,
        like: Tensor | None = None,
    ) -> Tensor:
        out = torch.empty_like(left if like is None else like)
        how: dict[str, Any] = {"ROWS": ROWS, "COLUMNS": COLUMNS, "TERMS": TERMS}
        how |= {"PRECISION": PRECISION, "num_warps": WARPS, "num_stages": STAGES}
        self._kernels.multiply[(len(tasks),)](left, right, out, tasks, TURNED=turned, **how)
        return out
