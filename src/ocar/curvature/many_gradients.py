"""G of all layers together, while a step is recorded on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from ocar.accel.gram import TERMS, ManySquares, Matrix, make_squares

_ALIGNMENT = 16  # bytes
_MOST = 2**31  # numbers that the kernels can count

Gradients = Mapping[str, tuple[Tensor, bool]]
"""Gradients at the outputs of layers, by name, and whether they are of images: of shape
``(columns, n, outputs, height, width)`` then, else ``(columns, n, ..., outputs)``."""


class ManyGradients:
    """Estimates G of layers, from gradients as they lie in memory."""

    def __init__(self) -> None:
        self._seen: tuple[Matrix, ...] = ()
        self._squares: dict[tuple[Matrix, ...], ManySquares | None] = {}

    def forget(self) -> None:
        """Drop all that was prepared: the buffer has changed."""
        self._squares.clear()

    def see(self, gradients: Gradients) -> None:
        """Take note of the shapes of gradients; they are recorded only once they were seen."""
        self._seen = find_matrices(gradients)

    def prepare(self, starts: Mapping[str, int], out: Tensor) -> None:
        """Make ready to record what was seen last: while a graph is recorded it cannot be done.

        Args:
            starts: Where G of each layer starts in a buffer, by name.
            out: The buffer.
        """
        if self._seen and self._seen not in self._squares:
            self._squares[self._seen] = make_squares(self._seen, starts, out)

    def estimate(self, gradients: Gradients, out: Tensor) -> tuple[set[str], Callable[[], None]]:
        """What writes G of layers into the buffer, and which layers those are.

        Args:
            gradients: Those of all layers.
            out: The buffer.
        """
        matrices = find_matrices(gradients)
        squares = self._squares.get(matrices)
        if squares is None:
            return set(), lambda: None
        numbers = {matrix.name: gradients[matrix.name][0] for matrix in matrices}
        return set(numbers), partial(squares.square, numbers, out)


def find_matrices(gradients: Gradients) -> tuple[Matrix, ...]:
    """The gradients as matrices, of those layers that there are kernels for."""
    found = (_find(name, g, of_images=of_images) for name, (g, of_images) in gradients.items())
    return tuple(matrix for matrix in found if matrix is not None)


def _find(name: str, g: Tensor, *, of_images: bool) -> Matrix | None:
    if not g.is_cuda or g.dtype != torch.float32 or g.numel() >= _MOST:
        return None
    if g.data_ptr() % _ALIGNMENT:
        return None
    pixels = g.movedim(2, -1) if of_images else g
    columns, samples, *places, size = pixels.shape
    area, by_pixel = math.prod(places), pixels.is_contiguous()
    if not by_pixel and not (of_images and g.is_contiguous() and area % TERMS == 0):
        return None
    return Matrix(name, size, columns * samples, area, by_pixel, 1 / (samples * area))
