"""Kronecker factors on the host: Cholesky factors and triangular solves instead of inverses.

Two triangular solves cost what one product with an inverse costs, and two thirds of the work of
an inverse are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ocar.accel import linalg
from ocar.accel.buffer import FactorBuffer, Pair
from ocar.accel.kronecker import Pairs, invert, precondition
from ocar.accel.rows import Rows

_WIDE = 256  # inputs from which it pays to leave out those that were always zero
_MOSTLY = 0.9  # unless more than this share of them was ever used


@dataclass(frozen=True, eq=False)
class _Factored:
    """What solves with A and G of one layer."""

    a: Tensor
    """Cholesky factor of the damped A, ``(groups, d, d)``, of the used inputs only."""

    g: Tensor
    """The Cholesky factor of the damped G for linear layers, its inverse for others."""

    linear: bool
    used: Tensor | None
    """Inputs that were ever nonzero, ascending; None for all. The rows and columns of the others
    in A are zero, so their part of the inverse is 1/damping."""

    damping: float
    """The damping of the unused inputs."""

    def times_inverse_a(self, rows: Tensor) -> Tensor:
        """Rows · A⁻¹; rows are ``(groups, r, d_in)``."""
        if self.used is None:
            return linalg.solve_right(self.a, rows)
        taken = rows[0].index_select(1, self.used).unsqueeze(0)
        result = rows / self.damping
        return result.index_copy_(2, self.used, linalg.solve_right(self.a, taken))

    def solve(self, gradient: Tensor) -> Tensor:
        half = torch.cholesky_solve(gradient, self.g) if self.linear else self.g @ gradient
        return self.times_inverse_a(half)

    def solve_rows(self, x: Tensor, g: Tensor) -> Tensor:
        """G⁻¹ΔᵀXA⁻¹ from X and Δ."""
        left = linalg.solve_right(self.g, g.unsqueeze(0))
        return left.mT @ self.times_inverse_a(x.unsqueeze(0))


def _factor(buffer: FactorBuffer, pair: Pair) -> _Factored | list[str]:
    """The factors of a layer, or why there are none."""
    a, g = (buffer.estimate(name) for name in pair.names)
    used, damping = None, 0.0
    if pair.linear and pair.d_in >= _WIDE:
        nonzero = buffer.average(pair.names[0])[0].diagonal() != 0
        if int(nonzero.sum()) <= _MOSTLY * pair.d_in:
            used, damping = nonzero.nonzero().squeeze(-1), float(a[0].diagonal()[~nonzero][0])
            a = a[0].index_select(0, used).index_select(1, used).unsqueeze(0)
    found = [_cholesky(buffer, pair.names[0], a, used), _cholesky(buffer, pair.names[1], g)]
    factor_a, factor_g = found
    if factor_a is None or factor_g is None:
        return [
            linalg.not_invertible(
                buffer.average(name),
                _levels(buffer).get(name, 0.0),
                name=f"the {side} of layer {pair.layer!r}",
            )
            for factor, name, side in zip(found, pair.names, ("inputs", "outputs"), strict=True)
            if factor is None
        ]
    of_g = factor_g if pair.linear else torch.cholesky_inverse(factor_g)
    return _Factored(factor_a, of_g, pair.linear, used, damping)


def _cholesky(
    buffer: FactorBuffer, name: str, damped: Tensor, used: Tensor | None = None
) -> Tensor | None:
    """The Cholesky factor of a damped average, or of the used rows and columns of it."""
    factor, level = linalg.cholesky(damped), _levels(buffer).get(name)
    if factor is not None or level is None or damped.dtype == torch.float64:
        return factor
    average = buffer.average(name).double()  # the damping may be lost by rounding
    if used is not None:
        average = average.index_select(1, used).index_select(2, used)
    factor = linalg.cholesky(linalg.add_to_diagonal(average, level.double()))
    return None if factor is None else factor.to(damped.dtype)


def _levels(buffer: FactorBuffer) -> dict[str, Tensor]:
    """The damping of each factor, ``(groups,)``."""
    levels: dict[str, Tensor] = buffer.derived.get("levels", {})
    return levels


@invert.implementation("host", when=lambda buffer, pairs: buffer.averages.is_cpu)
def _invert(buffer: FactorBuffer, pairs: Pairs) -> Tensor:
    found = {pair.layer: _factor(buffer, pair) for pair in pairs}
    reasons = [reason for own in found.values() if isinstance(own, list) for reason in own]
    if reasons:
        buffer.derived["reason"] = reasons[0]
    else:
        buffer.derived.setdefault("factored", {}).update(found)
    return torch.tensor(len(reasons))


@precondition.implementation("host", when=lambda buffer, *others: buffer.averages.is_cpu)
def _precondition(
    buffer: FactorBuffer,
    pairs: Pairs,
    gradients: Sequence[Tensor],
    rows: Sequence[Rows | None],
) -> list[Tensor]:
    factored: dict[str, _Factored] = buffer.derived.get("factored", {})
    results = []
    for pair, gradient, own in zip(pairs, gradients, rows, strict=True):
        factors, dtype = factored.get(pair.layer), buffer.averages.dtype
        if factors is None:  # no inverse was ever found
            results.append(torch.zeros_like(gradient))
        elif own is not None and pair.linear:
            solved = factors.solve_rows(*(part.to(dtype) for part in own))
            results.append(solved.to(gradient.dtype))
        else:
            results.append(factors.solve(gradient.to(dtype)).to(gradient.dtype))
    return results
