"""Products of many matrices with their own transposes in a few kernels, on a GPU.

A and G are such products: few rows, and many terms. A library takes three kernels for each G: one
that puts the gradients in rows, one for products of parts of them, one that adds up the parts; and
two for each A. Here those of several layers are made together, and only half of each, since it is
symmetric. What is multiplied is rounded as convolutions round it (TF32).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from ocar.accel.compiled import compiles, kernels

TERMS = 32
"""Terms of its sums that a program takes at a time."""


@dataclass(frozen=True)
class Matrix:
    """A matrix that is to be multiplied with its transpose.

    Args:
        name: Of the layer that it is of.
        size: Its rows.
        images: Parts that lie one after another.
        area: Columns of each part.
        by_pixel: Whether it lies column by column.
        scale: What the product is multiplied with.
    """

    name: str
    size: int
    images: int
    area: int
    by_pixel: bool
    scale: float

    @property
    def terms(self) -> int:
        """Its columns: the terms of each number of the product."""
        return self.images * self.area


class ManySquares:
    """Multiplies matrices with their transposes.

    Args:
        matrices: What they are.
        starts: Where the product for each layer starts in a buffer, by name.
        compiled: The kernels of :mod:`ocar.accel.triton.gram`.
        device: Where they are.
        tile: Rows and columns of a product that a program makes.
        share: Terms that it adds up, about.
        warps: Groups of 32 threads that share its work.
    """

    def __init__(
        self,
        matrices: Sequence[Matrix],
        starts: Mapping[str, int],
        *,
        compiled: ModuleType,
        device: torch.device,
        tile: int,
        share: int,
        warps: int,
    ) -> None:
        self._kernels, self._device = compiled, device
        self._tile, self._warps = tile, warps
        self._matrices = sorted(matrices, key=lambda matrix: matrix.by_pixel)
        self._apart = sum(not matrix.by_pixel for matrix in matrices)
        programs: list[list[tuple[int, ...]]] = [[], []]
        tiles: list[tuple[int, ...]] = []
        parts = 0
        for number, matrix in enumerate(self._matrices):
            own = number - self._apart if matrix.by_pixel else number
            for row, column in _half(-(-matrix.size // tile)):
                shares = range(0, matrix.terms, share)
                tiles.append((number, row, column, parts, len(shares), starts[matrix.name]))
                for start in shares:
                    end = min(matrix.terms, start + share)
                    programs[matrix.by_pixel].append((own, row, column, start, end, parts))
                    parts += 1
        self._parts = parts
        self._programs = [self._table(rows) for rows in programs]
        self._tiles = self._table(tiles)
        self._sizes = self._table([(matrix.size, matrix.area) for matrix in self._matrices])
        scales = [matrix.scale for matrix in self._matrices]
        self._scales = torch.tensor(scales, dtype=torch.float32, device=device)
        self._aligned = all(matrix.size % 4 == 0 for matrix in matrices if matrix.by_pixel)

    def _table(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=self._device)

    def compile(self, out: Tensor) -> None:
        """Run once, with zeros."""
        most = max(matrix.size * matrix.terms for matrix in self._matrices)
        zeros = torch.zeros(most, dtype=torch.float32, device=self._device)
        self.square({matrix.name: zeros for matrix in self._matrices}, out)

    def square(self, numbers: Mapping[str, Tensor], out: Tensor) -> None:
        """All products.

        Args:
            numbers: Those of each matrix, by name.
            out: The buffer to write the products into.
        """
        places = [numbers[matrix.name].data_ptr() for matrix in self._matrices]
        apart, together = places[: self._apart], places[self._apart :]
        programs_apart, programs_together = self._programs
        tile = self._tile
        parts = torch.empty(self._parts, tile, tile, dtype=torch.float32, device=self._device)
        how = {"TILE": tile, "TERMS": TERMS, "num_warps": self._warps}
        with torch.cuda.device_of(parts):
            if apart:
                self._kernels.square_channels[(len(programs_apart),)](
                    *(tuple(apart), self._sizes, programs_apart, parts), LAYERS=len(apart), **how
                )
            if together:
                self._kernels.square_pixels[(len(programs_together),)](
                    *(tuple(together), self._sizes[self._apart :], programs_together, parts),
                    LAYERS=len(together),
                    ALIGNED=self._aligned,
                    **how,
                )
            self._kernels.add_up[(len(self._tiles),)](
                *(parts, out, self._sizes, self._scales, self._tiles), TILE=tile
            )


def make_squares(
    matrices: Sequence[Matrix],
    starts: Mapping[str, int],
    out: Tensor,
    *,
    tile: int = 32,
    share: int = 1024,
    warps: int = 2,
) -> ManySquares | None:
    """What multiplies some matrices with their transposes, compiled, if that can be done.

    Args:
        matrices: What they are.
        starts: Where the product for each layer starts in a buffer, by name.
        out: The buffer.
        tile: Rows and columns of a product that a program makes.
        share: Terms that it adds up, about.
        warps: Groups of 32 threads that share its work.
    """
    compiled = kernels("ocar.accel.triton.gram")
    if compiled is None:
        return None
    how = {"tile": tile, "share": share, "warps": warps}
    squares = ManySquares(matrices, starts, compiled=compiled, device=out.device, **how)
    return squares if compiles(lambda: squares.compile(out), "Factors") else None


def _half(count: int) -> Iterator[tuple[int, int]]:
    """Rows and columns on and below the diagonal."""
    return ((row, column) for row in range(count) for column in range(row + 1))
