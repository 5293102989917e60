"""The cost of curvature compared with the gradient steps, and a bound for wide layers.

The cost is counted in operations, from shapes alone, so that a run can be repeated to the bit. Let
a layer have k inputs and d outputs, and R = samples · locations. With S passes a stream batch takes

* 6 S R k d for the gradients: three products a pass,
* R k² + k³/3 to estimate and factorise A, d³ to invert G,
* 2 S k d (k + d) to precondition the gradients, or 2 S R (k² + k d + d²) if that is less, since
  a gradient is a product of R rows.

With few samples of small images, the second and third terms dominate in wide layers. There the
channels are split into p parts of k/p inputs, and A becomes p blocks on its diagonal, damped like
the whole A. This takes p times less memory and p² times less work to factorise. Curvature between
channels of different parts is dropped.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from ocar.curvature.layers import MatrixLayer

WIDE = 1024
"""A layer with at most so many inputs is never split: its inverse takes milliseconds."""

SMALLEST = 256
"""The fewest inputs of a part."""

ROOM = 0.5
"""Once layers have to be split, they are split until the cost is at most this share of the bound:
operations on small matrices take about twice as long, and copies are not counted."""


FREE = 10**10
"""Operations a stream batch that are never saved: they take a fraction of a second on one core."""


@dataclass(frozen=True)
class Work:
    """The steps on a stream batch."""

    samples: int  #: New and replayed samples of a step; 0 if that is not known.
    passes: int  #: Gradient steps a stream batch.


@dataclass(frozen=True, eq=False)
class LayerCost:
    """Operations of one layer for a stream batch."""

    layer: MatrixLayer
    rows: int  #: Samples · locations.
    passes: int

    @property
    def inputs(self) -> int:
        """Inputs of an output in a group of the module, without the bias."""
        return self.layer.size

    @property
    def gradients(self) -> int:
        """Operations of the forward and backward passes."""
        return 6 * self.passes * self.rows * self.layer.weight.numel()

    def curvature(self, parts: int) -> int:
        """Operations of the curvature with so many parts."""
        size, outputs = self.inputs // parts, self.layer.d_out
        of_a = parts * (self.rows * size**2 + size**3 // 3)
        dense = parts * size * outputs * (size + outputs)
        by_rows = self.rows * (parts * size * (size + outputs) + outputs**2)
        applied = 2 * self.passes * min(dense, by_rows)
        return self.layer.own_groups * (of_a + outputs**3 + applied)

    def next_parts(self, parts: int) -> int | None:
        """The next larger number of parts; None if there is none that costs less."""
        channels = self.layer.channels
        if self.inputs <= WIDE or channels == 1:
            return None
        for more in range(parts + 1, self.inputs // SMALLEST + 1):
            if channels % more == 0 and self.curvature(more) < self.curvature(parts):
                return more
        return None


def find_parts(
    layers: Mapping[str, MatrixLayer],
    locations: Mapping[str, int],
    work: Work,
    *,
    max_cost: float,
) -> tuple[dict[str, int], float]:
    """If the curvature costs more than ``max_cost`` and is not negligible, split the widest layers.

    Args:
        layers: The layers by name.
        locations: At how many locations of a sample each layer uses its weights.
        work: The steps on a stream batch.
        max_cost: Operations of the curvature divided by those of the gradients.

    Returns:
        The parts of the layers that are split, and the cost without any split.
    """
    costs = {
        name: LayerCost(layer, work.samples * locations[name], work.passes)
        for name, layer in layers.items()
        if name in locations
    }
    parts = dict.fromkeys(costs, 1)
    gradients = sum(cost.gradients for cost in costs.values())
    curvature = whole = sum(cost.curvature(1) for cost in costs.values())
    waiting = set(costs) if whole > max(FREE, max_cost * gradients) else set()
    while curvature > ROOM * max_cost * gradients and waiting:
        widest = max(sorted(waiting), key=lambda name: costs[name].inputs // parts[name])
        more = costs[widest].next_parts(parts[widest])
        if more is None:
            waiting.remove(widest)
            continue
        curvature -= costs[widest].curvature(parts[widest]) - costs[widest].curvature(more)
        parts[widest] = more
    return {name: count for name, count in parts.items() if count > 1}, whole / max(1, gradients)


def warn_split(layers: Mapping[str, MatrixLayer], cost: float, *, stacklevel: int) -> None:
    """One warning that names the layers that are split."""
    listed = ", ".join(
        f"{name} ({layer.parts} parts of {layer.d_in - layer.has_bias:,} inputs)"
        for name, layer in layers.items()
    )
    warnings.warn(
        f"The curvature of these layers would take {cost:.1f} times the operations of the "
        f"gradient steps. {len(layers)} wide layer(s) have it in parts: {listed}. Set max_cost "
        "higher for fewer parts, None for none, lower for less time; more samples a step, or "
        "larger images, need fewer parts.",
        stacklevel=stacklevel,
    )
