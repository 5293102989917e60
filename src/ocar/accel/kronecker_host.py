"""Kronecker factors on the host: Cholesky factors and triangular solves instead of inverses.

Two triangular solves cost what one product with an inverse costs, and two thirds of the work of
an inverse are saved. A few numbers are computed without tensors: for small layers the calls cost
most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ocar.accel import linalg
from ocar.accel.buffer import FactorBuffer, Pair
from ocar.accel.kronecker import (
    LayerGradient,
    Pairs,
    are_finite,
    inverse_tensors,
    invert,
    mix_and_damp,
    precondition,
)

_WIDE = 256  # inputs from which it pays to leave out those that were always zero
_MOSTLY = 0.9  # unless more than this share of them was ever used


def _on_host(buffer: FactorBuffer, *others: object, **settings: object) -> bool:
    return buffer.averages.is_cpu


@mix_and_damp.implementation("host", when=_on_host)
def _mix_and_damp(
    buffer: FactorBuffer, pairs: Pairs, rates: Tensor, dims: Tensor, damping: Tensor | float
) -> Tensor:
    names = [name for pair in pairs for name in pair.names]
    ok = are_finite(buffer, pairs)
    weights = rates.tolist()
    together = len(names) == len(weights) and len(set(weights)) == 1
    if ok and together:
        buffer.averages.lerp_(buffer.estimates, weights[0])
    elif ok:
        for name in names:
            buffer.average(name).lerp_(buffer.estimate(name), weights[buffer.index(name)])
    sizes, levels = dims.tolist(), buffer.derived.setdefault("levels", {})
    for pair in pairs:
        a, g = (
            [
                trace / sizes[buffer.index(name)]
                for trace in buffer.average(name).diagonal(dim1=1, dim2=2).sum(-1).tolist()
            ]
            for name in pair.names
        )
        if pair.parts > 1:  # no part has a π of its own
            a = [sum(a) / len(a)]
        ratios = [x / y if x > 0 and y > 0 else 1.0 for x, y in zip(a, g, strict=True)]
        levels[pair.names[0]] = [math.sqrt(ratio * damping) for ratio in ratios]
        levels[pair.names[1]] = [math.sqrt(damping / ratio) for ratio in ratios]
        for name in pair.names:
            if name == pair.names[0] and _used_inputs(buffer, pair) is not None:
                continue  # invert() damps a copy of the used rows and columns
            damped = buffer.estimate(name).copy_(buffer.average(name))
            _add_levels_(damped, levels[name])
    return ok


@dataclass(frozen=True, eq=False)
class _Factored:
    """What solves with A and G of one layer."""

    a: Tensor  #: Cholesky factor of the damped A, ``(groups, d, d)``, of the used inputs only.
    g: Tensor  #: The Cholesky factor of the damped G where rows may be known, else its inverse.
    linear: bool
    #: Inputs that were ever nonzero, ascending; None for all. The rows and columns of the others in
    #: A are zero, so their part of the inverse is 1/damping.
    used: Tensor | None
    damping: float  #: The damping of A.

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
        """G⁻¹ΔᵀXA⁻¹ from Δ and X, which is ``(parts, m, d_in)`` if there are parts."""
        left = linalg.solve_right(self.g, g.unsqueeze(0))
        if x.dim() == 2:
            return left.mT @ self.times_inverse_a(x.unsqueeze(0))
        # One product for all parts, so that the weight's gradient is a view of it.
        right = self.times_inverse_a(x)
        whole = left[0].mT @ right.movedim(0, 1).flatten(1)
        return whole.unflatten(1, (len(x), -1)).movedim(1, 0)


@invert.implementation("host", when=_on_host)
def _invert(buffer: FactorBuffer, pairs: Pairs) -> Tensor:
    found = {pair.layer: _factor(buffer, pair) for pair in pairs}
    reasons = [reason for own in found.values() if isinstance(own, list) for reason in own]
    if reasons:
        buffer.derived["reason"] = reasons[0]
    else:
        buffer.derived.setdefault("factored", {}).update(found)
    return torch.tensor(len(reasons))


def _factor(buffer: FactorBuffer, pair: Pair) -> _Factored | list[str]:
    """The factors of a layer, or why there are none."""
    used, levels = _used_inputs(buffer, pair), buffer.derived.get("levels", {})
    factors: list[Tensor] = []
    reasons: list[str] = []
    for side, name in zip(("inputs", "outputs"), pair.names, strict=True):
        own = used if side == "inputs" else None
        matrix = buffer.estimate(name) if own is None else _damped(buffer, name, own)
        factor = linalg.cholesky(matrix)
        if factor is None and matrix.dtype != torch.float64 and name in levels:
            # The damping may have been lost by rounding.
            factor = linalg.cholesky(_damped(buffer, name, own, torch.float64))
        if factor is None:
            about = f"the {side} of layer {pair.layer!r}"
            level = min(levels.get(name, [0.0]))
            reasons.append(linalg.not_invertible(buffer.average(name), level, name=about))
        else:
            factors.append(factor.to(matrix.dtype))
    if reasons:
        return reasons
    a, g = factors
    return _factored(buffer, pair, used, a, g if pair.linear else torch.cholesky_inverse(g))


def _factored(
    buffer: FactorBuffer, pair: Pair, used: Tensor | None, a: Tensor, g: Tensor
) -> _Factored:
    damping = 0.0 if used is None else buffer.derived["levels"][pair.names[0]][0]
    return _Factored(a, g, pair.linear, used, damping)


def _damped(
    buffer: FactorBuffer, name: str, used: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """A damped average, or the rows and columns of its used inputs."""
    matrix = buffer.average(name).to(dtype or buffer.averages.dtype)
    if used is None:
        matrix = matrix.clone()
    else:
        matrix = matrix[0].index_select(0, used).index_select(1, used).unsqueeze(0)
    _add_levels_(matrix, buffer.derived["levels"][name])
    return matrix


def _add_levels_(matrices: Tensor, levels: list[float]) -> None:
    """Add one level a matrix to the diagonals, or one for all parts of a layer."""
    every = levels * len(matrices) if len(levels) == 1 else levels
    for matrix, level in zip(matrices, every, strict=True):
        matrix.diagonal().add_(level)


def _used_inputs(buffer: FactorBuffer, pair: Pair) -> Tensor | None:
    """Inputs of a wide linear layer that were ever nonzero; None if most were."""
    if not pair.linear or pair.d_in < _WIDE or pair.parts > 1:
        return None
    used = buffer.average(pair.names[0])[0].diagonal().nonzero().squeeze(-1)
    return used if len(used) <= _MOSTLY * pair.d_in else None


@inverse_tensors.implementation("host", when=_on_host)
def _inverse_tensors(
    buffer: FactorBuffer, pairs: Pairs, *, found: bool
) -> list[tuple[Tensor, bool]]:
    factored: dict[str, _Factored] = buffer.derived.setdefault("factored", {})
    for pair in pairs:
        used = _used_inputs(buffer, pair)
        a, g = (torch.zeros_like(buffer.average(name)) for name in pair.names)
        if used is not None:
            a = a.new_zeros(1, len(used), len(used))
        if found:  # the library stores factors by columns, and others would round differently
            a.copy_(factored[pair.layer].a)
            g.copy_(factored[pair.layer].g)
        factored[pair.layer] = _factored(buffer, pair, used, a, g)
    own = [(factored[pair.layer], pair.linear) for pair in pairs]
    return [t for f, linear in own for t in ((f.a, False), (f.g, not linear))]


@precondition.implementation("host", when=_on_host)
def _precondition(buffer: FactorBuffer, gradients: Sequence[LayerGradient]) -> list[Tensor]:
    factored: dict[str, _Factored] = buffer.derived.get("factored", {})
    results, dtype = [], buffer.averages.dtype
    for pair, make, own in gradients:
        factors = factored.get(pair.layer)
        if factors is None:  # no inverse was ever found
            results.append(torch.zeros_like(make()))
        elif own is not None and pair.linear:
            solved = factors.solve_rows(*(part.to(dtype) for part in own))
            results.append(solved.to(own[1].dtype))
        else:
            whole = make()
            results.append(factors.solve(whole.to(dtype)).to(whole.dtype))
    return results
