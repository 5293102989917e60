"""Kronecker factors that several ranks invert together: each layer is the business of one rank.

All ranks have all averages. A rank inverts the damped factors of its layers. The others then get
the inverses, or the gradients that were multiplied with them; see :class:`~ocar.accel.ranks.Ranks`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ocar.accel import triangles
from ocar.accel.buffer import FactorBuffer, Pair
from ocar.accel.kronecker import LayerGradient, Pairs, inverse_tensors, invert, precondition
from ocar.accel.operation import known
from ocar.accel.ranks import Ranks


def cost(pair: Pair) -> int:
    """What the inverses of a layer cost: the cubes of their sizes."""
    return pair.groups * (pair.parts * pair.d_in**3 + pair.d_out**3)


def share_out(pairs: Sequence[Pair], size: int) -> dict[str, int]:
    """The rank of each layer: the costliest layer first, each to the rank with the least so far."""
    loads, found = [0] * size, {}
    for pair in sorted(pairs, key=cost, reverse=True):
        rank = found[pair.layer] = loads.index(min(loads))
        loads[rank] += cost(pair)
    return found


class SharedInverses:
    """Inverts and applies the Kronecker factors of some layers; without ranks in one process."""

    def __init__(self, pairs: Pairs, ranks: Ranks | None) -> None:
        self._ranks = None if ranks is None or ranks.inverses == "replicated" else ranks
        self._owners = {} if self._ranks is None else share_out(pairs, self._ranks.size)

    def invert(self, buffer: FactorBuffer, pairs: Pairs) -> Tensor:
        """:func:`~ocar.accel.kronecker.invert` with the same result on all ranks.

        Where the number of failures is known at once, a failure is the same error on all ranks.
        Elsewhere the old inverses of a rank's layers stay if one of these has none.
        """
        ranks = self._ranks
        if ranks is None:
            return invert(buffer, pairs)
        own = self._of(ranks.rank, pairs)
        failed = invert(buffer, own) if own else buffer.counts.new_zeros(())
        ranks.sum_(failed)
        if known(failed > 0):
            reasons = ranks.exchange(buffer.derived.get("reason"))
            buffer.derived["reason"] = next(filter(None, reasons), None)
        elif ranks.inverses == "broadcast":
            for rank in sorted({*self._owners.values()}):
                self._broadcast(ranks, buffer, self._of(rank, pairs), rank)
        return failed

    def _of(self, rank: int, pairs: Pairs) -> Pairs:
        """The layers of a rank."""
        return tuple(pair for pair in pairs if self._owners[pair.layer] == rank)

    def _broadcast(self, ranks: Ranks, buffer: FactorBuffer, pairs: Pairs, source: int) -> None:
        """Give all ranks the inverses of some layers, as triangles in one message."""
        matrices = inverse_tensors(buffer, pairs, found=ranks.rank == source)
        if matrices:
            lower = [triangles.upper(matrix.mT) for matrix, _ in matrices]
            flat = ranks.broadcast_(torch.cat(lower), source)
            parts = flat.split([part.numel() for part in lower])
            for (matrix, symmetric), part in zip(matrices, parts, strict=True):
                write = triangles.mirror_ if symmetric else triangles.write_
                write(matrix.mT, part)

    def precondition(
        self, buffer: FactorBuffer, gradients: Sequence[LayerGradient]
    ) -> list[Tensor]:
        """:func:`~ocar.accel.kronecker.precondition`; each rank for its layers, if sharded."""
        ranks = self._ranks
        if ranks is None or ranks.inverses == "broadcast":
            return precondition(buffer, gradients)
        own = [one for one in gradients if self._owners[one.pair.layer] == ranks.rank]
        layers = [one.pair.layer for one in own]
        found = dict(zip(layers, precondition(buffer, own), strict=True))
        results = [
            found[pair.layer] if pair.layer in found else torch.zeros_like(make())
            for pair, make, _ in gradients
        ]
        # All but one of the numbers that are added up are zero, so that the sum is exact.
        flat = ranks.sum_(torch.cat([result.flatten() for result in results]))
        parts = flat.split([result.numel() for result in results])
        return [
            part.view(result.shape).to(result.dtype)
            for part, result in zip(parts, results, strict=True)
        ]
