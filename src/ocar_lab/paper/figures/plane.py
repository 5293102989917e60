"""The plane through three weight vectors, with an orthonormal basis (Appendix F of the paper).

With u = w₁ − w₀ and v = w₅ − w₀ the basis is that of Gram and Schmidt:

    ū = u / ‖u‖,   v̄ = (v − ⟨ū, v⟩ ū) / ‖v − ⟨ū, v⟩ ū‖.

The paper prints v − cos(u, v) u instead of v − ⟨ū, v⟩ ū. The subtracted vectors differ by a factor
‖v‖/‖u‖, so the printed v̄ is orthogonal to ū only if ‖u‖ = ‖v‖.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ocar.errors import InputError


class Plane(NamedTuple):
    """A plane in the space of ``d`` weights; all in float64."""

    origin: Tensor  # w₀, (d,)
    u: Tensor  # ū, (d,)
    v: Tensor  # v̄, (d,), orthogonal to ū

    def coordinates(self, weights: Tensor) -> Tensor:
        """The nearest points of the plane, ``(..., 2)``, of weights ``(..., d)``."""
        moved = weights.double() - self.origin
        return torch.stack([moved @ self.u, moved @ self.v], dim=-1)

    def points(self, coordinates: Tensor) -> Tensor:
        """Weights ``(..., d)`` at coordinates ``(..., 2)``: w₀ + x ū + y v̄."""
        x, y = coordinates.double().split(1, dim=-1)
        return self.origin + x * self.u + y * self.v

    def distances(self, weights: Tensor) -> Tensor:
        """Distances of weights ``(..., d)`` from the plane, ``(...)``."""
        nearest = self.points(self.coordinates(weights))
        return torch.linalg.vector_norm(weights.double() - nearest, dim=-1)


def plane_through(start: Tensor, first: Tensor, last: Tensor) -> Plane:
    """The plane through three points ``(d,)``: the origin w₀, w₁ on the first axis, and a third.

    Raises:
        InputError: The points lie on one line.
    """
    origin = start.double()
    u, v = first.double() - origin, last.double() - origin
    across = u / torch.linalg.vector_norm(u)
    rest = v - (across @ v) * across
    size = torch.linalg.vector_norm(rest)
    if not bool(size > 1e-9 * torch.linalg.vector_norm(v)):
        raise InputError("The three points lie on one line, so there is no plane through them.")
    # Once more, against rounding errors along the first axis.
    rest = rest / size
    rest = rest - (across @ rest) * across
    return Plane(origin=origin, u=across, v=rest / torch.linalg.vector_norm(rest))
