"""Average, damp, invert and apply the Kronecker factors of all layers.

The operations work on one :class:`~ocar.accel.buffer.FactorBuffer`: ``mix_and_damp`` and ``invert``
after a new estimate, ``precondition`` in every gradient step. ``inverse_tensors`` is for ranks that
send each other inverses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ocar.accel import linalg
from ocar.accel.buffer import FactorBuffer, Pair
from ocar.accel.operation import known, operation
from ocar.accel.rows import Rows

Pairs = tuple[Pair, ...]


class LayerGradient(NamedTuple):
    """The gradient of a layer, to be preconditioned."""

    pair: Pair  # its factors
    make: Callable[[], Tensor]  # the gradient, ``(groups, d_out, d_in)``
    rows: Rows | None = None  # X and Δ if the gradient is known to be ΔᵀX


@operation
def mix_and_damp(
    buffer: FactorBuffer, pairs: Pairs, rates: Tensor, dims: Tensor, damping: Tensor | float
) -> Tensor:
    """Take estimates into the moving averages, and damp them for :func:`invert`.

    averages ← (1 − rate) · averages + rate · estimates. The damping τ is split over the two factors
    of a layer: A + π√τ I and G + √τ/π I with π = √((tr A / dim A) / (tr G / dim G)), which balances
    them (Martens & Grosse 2015, section 6.3). A factor that is zero has no scale: then π is 1.

    Args:
        buffer: The factors. The estimates are overwritten by the damped averages, or stay.
        pairs: The layers that have a new estimate.
        rates: Weight of the new estimate of each statistic of the buffer, float64.
        dims: The dimension of each statistic in π. It is less than the number of rows where some
            outputs stand for no class.
        damping: τ.

    Returns:
        Whether the estimates are finite, a scalar of bool. If not, the averages stay.
    """
    ok = are_finite(buffer, pairs)
    take_estimates(buffer, pairs, rates, dims, damping, ok)
    return ok


def are_finite(buffer: FactorBuffer, pairs: Pairs) -> Tensor:
    """Whether all estimates are finite, a scalar of bool."""
    # Factors have sums of squares on their diagonals, so that anything infinite shows there.
    traces = [
        buffer.estimate(name).diagonal(dim1=-2, dim2=-1).sum()
        for pair in pairs
        for name in pair.names
    ]
    ok = torch.stack(traces).sum().isfinite()
    if known(ok) is False:
        infinite = zip(traces, (pair.layer for pair in pairs for _ in range(2)), strict=True)
        buffer.derived["infinite"] = list(
            dict.fromkeys(layer for trace, layer in infinite if not trace.isfinite())
        )
    return ok


def take_estimates(
    buffer: FactorBuffer,
    pairs: Pairs,
    rates: Tensor,
    dims: Tensor,
    damping: Tensor | float,
    ok: Tensor,
) -> None:
    """:func:`mix_and_damp` once it is known whether the estimates are taken."""
    for pair in pairs:
        for name in pair.names:
            old, new = buffer.average(name), buffer.estimate(name)
            if known(ok) is None:
                new = torch.where(ok, new, old)
            if known(ok) is not False:
                old.lerp_(new, rates[buffer.index(name)].to(old.dtype))
        for name, level in zip(pair.names, _levels(buffer, pair, dims, damping), strict=True):
            damped = buffer.estimate(name).copy_(buffer.average(name))
            damped.diagonal(dim1=-2, dim2=-1).add_(level.unsqueeze(-1))


def _levels(
    buffer: FactorBuffer, pair: Pair, dims: Tensor, damping: Tensor | float
) -> tuple[Tensor, Tensor]:
    """(π√τ, √τ/π), each ``(groups,)``."""
    mean_a, mean_g = (
        buffer.average(name).diagonal(dim1=-2, dim2=-1).sum(-1) / dims[buffer.index(name)]
        for name in pair.names
    )
    return damping_levels(mean_a, mean_g, pair.parts, damping)


def damping_levels(
    mean_a: Tensor, mean_g: Tensor, parts: int, damping: Tensor | float
) -> tuple[Tensor, Tensor]:
    """What is added to the diagonals of A and G, (π√τ, √τ/π) with π² = mean of A / mean of G.

    Args:
        mean_a: Means of the diagonals of A, ``(groups · parts,)``; no part has a π of its own.
        mean_g: Those of G, ``(groups,)``. Where one of both is zero π is 1.
        parts: Parts that the inputs are split into.
        damping: τ.
    """
    mean_a = mean_a.unflatten(0, (-1, parts)).mean(1)
    balanced = (mean_a > 0) & (mean_g > 0)
    squared = torch.where(balanced, mean_a / mean_g, 1.0)
    return (squared * damping).sqrt().to(mean_a), (damping / squared).sqrt().to(mean_a)


@operation
def invert(buffer: FactorBuffer, pairs: Pairs) -> Tensor:
    """Invert the damped averages that :func:`mix_and_damp` left.

    Only :func:`precondition` reads the inverses; each implementation has a form of its own.

    Returns:
        How many factors have no inverse, a scalar of int64. If there are any, the old inverses
        stay.
    """
    found, failed = find_inverses(buffer, pairs)
    replace_inverses(buffer, found, failed)
    return failed


def find_inverses(buffer: FactorBuffer, pairs: Pairs) -> tuple[dict[str, Tensor], Tensor]:
    """The inverse of each damped factor, and how many factors have none."""
    found = {n: linalg.inverse(buffer.estimate(n)) for pair in pairs for n in pair.names}
    failed = torch.stack([bad for _, bad in found.values()]).sum()
    return {name: inverse for name, (inverse, _) in found.items()}, failed


def replace_inverses(buffer: FactorBuffer, found: Mapping[str, Tensor], failed: Tensor) -> None:
    """Write new inverses over the old ones, unless there was a failure."""
    for name, inverse in found.items():
        place = buffer.view(inverses(buffer), name)
        torch.where(failed > 0, place, inverse, out=place)


def inverses(buffer: FactorBuffer) -> Tensor:
    """The inverses, flat, for implementations that keep them so."""
    if "inverses" not in buffer.derived:
        buffer.derived["inverses"] = torch.zeros_like(buffer.averages)
    flat: Tensor = buffer.derived["inverses"]
    return flat


@operation
def inverse_tensors(
    buffer: FactorBuffer, pairs: Pairs, *, found: bool
) -> list[tuple[Tensor, bool]]:
    """The matrices that :func:`precondition` reads of some layers, to send or to overwrite.

    Each comes with whether it is symmetric; the others are lower triangular. Those of the same
    layers have the same shapes and layout on all ranks.

    Args:
        buffer: The factors; :func:`mix_and_damp` has damped them.
        pairs: The layers.
        found: Whether :func:`invert` has inverted them here. If not, another rank has.
    """
    flat = inverses(buffer)
    return [(buffer.view(flat, name), True) for pair in pairs for name in pair.names]


@operation
def precondition(buffer: FactorBuffer, gradients: Sequence[LayerGradient]) -> list[Tensor]:
    """G⁻¹ · gradient · A⁻¹ of each layer."""
    flat, results = inverses(buffer), []
    for pair, make, _ in gradients:
        a, g = (buffer.view(flat, name) for name in pair.names)
        own = make()
        results.append((g @ own.to(g.dtype) @ a).to(own.dtype))
    return results
