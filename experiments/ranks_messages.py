"""The messages of one batch of several ranks, and the time that they take.

A message of b bytes a rank takes hops · latency + volume / bandwidth. With N ranks in a ring a
gather has N − 1 hops and (N − 1) b bytes, a sum 2 (N − 1) hops and 2 (N − 1)/N b bytes, a broadcast
N − 1 hops and b bytes. NCCL sums along trees, with 2 log₂ N hops (double binary trees, NCCL 2.4).

A test compares the messages with those that were counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ocar.accel import Pair
from ocar.accel.shared_inverses import share_out


@dataclass(frozen=True, kw_only=True)
class Link:
    """What connects ranks."""

    latency: float  #: Seconds a hop.
    bandwidth: float  #: Bytes a second.
    trees: bool = False  #: Sums go along trees.

    def way(self, kind: str, size: int, ranks: int) -> tuple[float, float]:
        """Hops of a message, and the bytes that one rank sends on them."""
        if kind == "gather":
            return ranks - 1, (ranks - 1) * size
        if kind == "broadcast":
            return ranks - 1, size
        hops = 2 * math.ceil(math.log2(ranks)) if self.trees else 2 * (ranks - 1)
        return hops, 2 * (ranks - 1) / ranks * size

    def seconds(self, kind: str, size: int, ranks: int) -> float:
        """Time of a message."""
        hops, volume = self.way(kind, size, ranks)
        return hops * self.latency + volume / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class Load:
    """What decides the messages of a batch."""

    new: int
    replayed: int
    passes: int
    sample: int  #: Bytes of a sample.
    outputs: int
    parameters: int
    tensors: int  #: How many tensors the parameters are.
    factors: tuple[int, ...] = ()  #: Numbers that each kind of block sends; none without curvature.
    statistics: tuple[int, ...] = ()  #: How many statistics these are.
    factor_dtype: str = "same"
    pairs: tuple[Pair, ...] = ()  #: The layers with Kronecker factors.
    inverses: str = "replicated"
    channels: tuple[int, ...] = ()  #: Of each BatchNorm layer.
    draws: bool = False  #: Whether layers may draw, such as dropout: the guard then asks twice.
    columns: int = 2  #: Of the Fisher, as OCAR has by default.
    number: int = 4  #: Bytes of a number.


@dataclass(frozen=True)
class Message:
    """One collective."""

    kind: str
    size: int  #: Bytes of one rank.
    host: bool = False  #: Whether it goes between CPUs.


def messages(load: Load, ranks: int) -> Iterator[Message]:
    """The messages of one batch, with a replicated memory and synchronised BatchNorm.

    Those of inverses are as without inputs of wide layers that were always zero.
    """
    new, old, joint = (
        -(-rows // ranks) for rows in (load.new, load.replayed, load.new + load.replayed)
    )
    outputs = load.outputs * load.number
    statistics_ = [Message("gather", (2 * c + 1) * load.number) for c in load.channels]
    slopes = [2 * c * load.number for c in load.channels]
    yield Message("gather", 24, host=True)
    yield Message("gather", new * load.sample)
    yield Message("gather", new * 8, host=True)
    for _ in range(load.passes):
        yield from statistics_
        yield Message("gather", joint * outputs)
        yield from (Message("sum", size) for size in slopes)
        yield Message("sum", (load.parameters + load.tensors) * load.number)
        if load.pairs and load.inverses == "sharded":
            weights = (p.groups * p.parts * p.d_in * p.d_out for p in load.pairs)
            yield Message("sum", sum(weights) * load.number)
    if load.factors:
        yield from (Message("sum", load.columns * size) for size in slopes)
        for count, scales in zip(load.factors, load.statistics, strict=True):
            if load.factor_dtype == "float16":
                yield Message("sum", scales * load.number)
            yield Message("sum", count * (2 if load.factor_dtype == "float16" else load.number))
        if load.pairs and load.inverses != "replicated":
            yield Message("sum", 8)
        if load.inverses == "broadcast":
            for own in by_rank(load.pairs, ranks):
                shapes = (
                    (p.groups * count, size, size)
                    for p in own
                    for count, size in ((p.parts, p.d_in), (1, p.d_out))
                )
                yield Message("broadcast", triangles(shapes) * load.number)
        if load.draws:
            yield from [Message("gather", old * outputs)] * 2
        else:
            yield from statistics_
            yield Message("gather", (joint if load.channels else old) * outputs)


def by_rank(pairs: Sequence[Pair], ranks: int) -> list[list[Pair]]:
    """The layers that each rank inverts, if it has any."""
    owners = share_out(pairs, ranks)
    shares = [[p for p in pairs if owners[p.layer] == rank] for rank in range(ranks)]
    return [share for share in shares if share]


def triangles(shapes: Iterable[tuple[int, ...]]) -> int:
    """Numbers in the upper triangles of stacks of square matrices."""
    return sum(count * d * (d + 1) // 2 for count, d, _ in shapes)
