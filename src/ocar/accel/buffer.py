"""Statistics of many layers in flat tensors.

On a GPU the small steps between two large ones cost most: a moving average, a trace or a damping
is one kernel for each of some forty factors. In one flat tensor each of them is one kernel for all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ocar.accel import triangles


@dataclass(frozen=True)
class Pair:
    """The two Kronecker factors of one layer: A of its inputs and G of its output gradients."""

    layer: str
    groups: int  # of a convolution; each has factors of its own
    d_in: int  # rows of A
    d_out: int  # rows of G
    linear: bool = False  # then its gradient may be a product of few rows
    parts: int = 1  # of the inputs: so many A, which share G and its damping

    @property
    def names(self) -> tuple[str, str]:
        """The names of A and G in a buffer."""
        return f"{self.layer}.A", f"{self.layer}.G"


class FactorBuffer:
    """Moving averages of statistics, and the estimates of one batch, each in one flat tensor.

    Args:
        shapes: Shape of each statistic by name.
        like: A tensor of the type and on the device that the statistics have.
        symmetric: Names of the statistics that are symmetric matrices ``(..., d, d)``.

    Attributes:
        averages: All averages, flat; zero at the start.
        estimates: All estimates, flat. Operations may use it as scratch memory afterwards.
        counts: How many estimates are in each average, ``(statistics,)`` of int64.
        derived: What operations derive from the averages, by name; theirs alone.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        like: Tensor,
        symmetric: Container[str] = (),
    ) -> None:
        self.shapes = dict(shapes)
        self._symmetric = {name for name in self.shapes if name in symmetric}
        starts = [0, *itertools.accumulate(math.prod(shape) for shape in self.shapes.values())]
        self._starts = dict(zip(self.shapes, starts[:-1], strict=True))
        self.averages, self.estimates = like.new_zeros(2, starts[-1]).unbind()
        self.counts = torch.zeros(len(self.shapes), dtype=torch.int64, device=like.device)
        self.derived: dict[str, Any] = {}
        self._index = {name: index for index, name in enumerate(self.shapes)}
        self._averages = {name: self.view(self.averages, name) for name in self.shapes}
        self._estimates = {name: self.view(self.estimates, name) for name in self.shapes}

    def start(self, name: str) -> int:
        """Where a statistic starts in a flat tensor."""
        return self._starts[name]

    def index(self, name: str) -> int:
        """The place of a statistic in ``counts``."""
        return self._index[name]

    def view(self, flat: Tensor, name: str) -> Tensor:
        """A statistic in a flat tensor with the layout of this buffer."""
        start, shape = self._starts[name], self.shapes[name]
        return flat[start : start + math.prod(shape)].view(shape)

    def average(self, name: str) -> Tensor:
        """The moving average of a statistic."""
        return self._averages[name]

    def estimate(self, name: str) -> Tensor:
        """Where the estimate of a statistic is written."""
        return self._estimates[name]

    def pack(self, names: Sequence[str]) -> Tensor:
        """The estimates of some statistics, flat; of symmetric matrices the upper triangles."""
        parts = [
            triangles.upper(estimate) if name in self._symmetric else estimate.flatten()
            for name, estimate in ((name, self.estimate(name)) for name in names)
        ]
        return torch.cat(parts)

    def unpack_(self, packed: Tensor, names: Sequence[str]) -> None:
        """Replace the estimates of some statistics by what :meth:`pack` gave."""
        for name, part in zip(names, packed.split(self.packed_sizes(names)), strict=True):
            estimate = self.estimate(name)
            if name in self._symmetric:
                triangles.mirror_(estimate, part)
            else:
                estimate.copy_(part.view_as(estimate))

    def packed_sizes(self, names: Sequence[str]) -> list[int]:
        """How many numbers :meth:`pack` gives of each statistic."""
        shapes = {name: self.shapes[name] for name in names}
        return [
            triangles.numbers(shape) if name in self._symmetric else math.prod(shape)
            for name, shape in shapes.items()
        ]
