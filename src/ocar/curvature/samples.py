"""Where the samples are in what a layer saw.

Layers may see the samples in any dimension, such as the second of ``(time, n, features)``, or
several rows a sample in one dimension, such as ``(n · tokens, features)``. Shapes alone are often
ambiguous. So the gradients of a few samples are pulled back once: each must be zero at the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ocar.curvature.layers import AddedLayer, Layer
from ocar.curvature.places import Place, places
from ocar.curvature.recorder import Record

LEAST_SHARE = 0.5
"""Least share of a sample's gradient at its own rows; samples that BatchNorm couples have more."""


class Samples:
    """Finds the samples in the inputs of layers, and remembers where they are."""

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        self._layers = layers
        self._places: dict[tuple[str, int], Place] = {}
        self._looked: set[tuple[str, int]] = set()  # uses with or without a place
        self._spread: set[str] = set()  # layers that see no samples

    def known(self, records: Mapping[str, Sequence[Record]]) -> bool:
        """Whether all uses of weights have been seen before."""
        return self._looked >= _uses(records)

    def find(
        self,
        records: Mapping[str, Sequence[Record]],
        gradients: Mapping[str, Sequence[Tensor]],
        samples: int,
        *,
        coupled: bool,
    ) -> None:
        """Find the places from gradients of the first samples, one a column.

        Args:
            records: The uses of the weights.
            gradients: The output gradient of each, ``(columns, *shape)``; column i is of sample i.
            samples: How many there are.
            coupled: Whether the outputs of a sample depend on other samples.
        """
        self._looked |= _uses(records)
        for name, own in gradients.items():
            for index, (record, g) in enumerate(zip(records[name], own, strict=True)):
                layer = self._layers[name]
                x, g = layer.arranged(record.x, g, record.use)
                options = places(x.shape, samples, layer.sample_dims(x, record.use))
                if not options:  # then it has none by chance in another batch either
                    if isinstance(layer, AddedLayer) or not x.is_floating_point():
                        self._spread.add(name)
                    continue
                shares = [_share(place, g, samples) for place in options]
                best = options[shares.index(max(shares))]
                self._places[name, index] = best
                sure = best.dim > 0 or (x.shape[0] != samples and not coupled)
                if sure and max(shares) < LEAST_SHARE:
                    self._spread.add(name)

    def complete(
        self, records: Mapping[str, Sequence[Record]], samples: int
    ) -> dict[str, Sequence[Record]]:
        """The records of the layers whose uses are known for each of the samples."""
        return {n: own for n, own in records.items() if not self._is_for_all(n, own, samples)}

    def _is_for_all(self, name: str, records: Sequence[Record], samples: int) -> bool:
        """Whether a layer does not know the samples, such as one that computes positions."""
        layer = self._layers[name]
        if name in self._spread:
            return True
        if isinstance(layer, AddedLayer):
            return not all(self._options(layer, one, samples) for one in records)
        if not all(layer.sample_dims(one.x, one.use) for one in records):
            return True  # a vector, from which weights are made
        if not all(
            one.x.is_floating_point() or self._options(layer, one, samples) for one in records
        ):
            return True  # indices of places, not of samples
        rows = [len(one.x) for one in records if not one.use.time_first]
        return samples > 1 and rows == [1] and (name, 0) not in self._places

    def by_sample(
        self, name: str, index: int, record: Record, g: Tensor, samples: int
    ) -> tuple[Tensor, Tensor]:
        """The input of a use and its output gradients, samples first."""
        place = self._places.get((name, index))
        return self._layers[name].by_sample(record.x, g, samples, record.use, place)

    def _options(self, layer: Layer, record: Record, samples: int) -> list[Place]:
        return places(record.x.shape, samples, layer.sample_dims(record.x, record.use))


def _uses(records: Mapping[str, Sequence[Record]]) -> set[tuple[str, int]]:
    return {(name, index) for name, own in records.items() for index in range(len(own))}


def _share(place: Place, g: Tensor, samples: int) -> float:
    """The least share of a column's squares that is at its own sample."""
    squares = place.first(g, samples, before=1).double().square()
    squares = squares.reshape(len(g), samples, -1).sum(2)
    whole = squares.sum(1)
    shares = torch.where(whole > 0, squares.diagonal() / whole, 1.0)
    return float(shares.nan_to_num(nan=1.0).min())
