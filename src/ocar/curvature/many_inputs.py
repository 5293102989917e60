"""A of convolutions that follow each other, together, while a step is recorded on a GPU.

The patches of each are written as soon as the forward pass comes to it, and when there are those of
a few layers, their products are made; see :mod:`ocar.accel.gram`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from ocar.accel.gram import TERMS, ManySquares, Matrix, make_squares
from ocar.accel.layout import lies_by_pixel
from ocar.accel.patches import Patches, find_patches

_LAYERS = 5  # of a group; more would keep more patches in memory
_TILE, _SHARE, _WARPS = 64, 2048, 4

Seen = tuple[int, tuple[tuple[str, Patches], ...]]
"""The number of samples, and the patches of each layer in the order of the forward pass."""


@dataclass(eq=False)
class _Group:
    layers: dict[str, Patches]
    squares: ManySquares
    rows: dict[str, Tensor] = field(default_factory=dict)


class ManyInputs:
    """Estimates A of convolutions, a few together."""

    def __init__(self) -> None:
        self._seen: Seen = (0, ())
        self._prepared: set[Seen] = set()
        self._groups: dict[int, dict[str, _Group]] = {}

    def forget(self) -> None:
        """Drop all that was prepared: the buffer has changed."""
        self._groups.clear()
        self._prepared.clear()

    def see(
        self, inputs: Mapping[str, Tensor], convs: Mapping[str, tuple[nn.Conv2d, bool]]
    ) -> None:
        """Take note of what went into layers; it is recorded only once it was seen.

        Args:
            inputs: Of each layer, in the order of the forward pass.
            convs: Layers without a bias, and whether their patches are in the order pixel by pixel.
        """
        found = {name: _find(inputs[name], *convs[name]) for name in inputs if name in convs}
        samples = next((len(inputs[name]) for name in found), 0)
        self._seen = samples, tuple((name, p) for name, p in found.items() if p is not None)

    def clear(self) -> None:
        """Drop what a forward pass has left of groups that it did not come to whole."""
        for groups in self._groups.values():
            for group in groups.values():
                group.rows.clear()

    def prepare(self, starts: Mapping[str, int], out: Tensor) -> None:
        """Make ready to record what was seen last: while a graph is recorded it cannot be done.

        Args:
            starts: Where A of each layer starts in a buffer, by name.
            out: The buffer.
        """
        if self._seen in self._prepared:
            return
        self._prepared.add(self._seen)
        samples, layers = self._seen
        groups = self._groups[samples] = {}
        for first in range(0, len(layers), _LAYERS):
            part = dict(layers[first : first + _LAYERS])
            matrices = [_matrix(name, patches, samples) for name, patches in part.items()]
            how = {"tile": _TILE, "share": _SHARE, "warps": _WARPS}
            squares = make_squares(matrices, starts, out, **how)
            if squares is not None:
                groups.update(dict.fromkeys(part, _Group(part, squares)))

    def add(
        self, name: str, x: Tensor, conv: nn.Conv2d, out: Tensor, *, by_pixel: bool
    ) -> set[str] | None:
        """One more layer that the forward pass has come to, on the stream for all of these.

        Args:
            name: Of the layer.
            x: What goes into it.
            conv: The layer.
            out: The buffer.
            by_pixel: Whether its patches are in the order pixel by pixel.

        Returns:
            The layers whose A is made by now and was not before; None if it is not one of these.
        """
        group = self._groups.get(len(x), {}).get(name)
        if group is None or name in group.rows:
            return None
        patches = _find(x, conv, by_pixel)
        if patches is None or patches != group.layers[name]:
            return None
        group.rows[name] = patches.rows(x, conv, multiple=TERMS)
        if len(group.rows) < len(group.layers):
            return set()
        group.squares.square(group.rows, out)
        group.rows.clear()
        return set(group.layers)


def _find(x: Tensor, conv: nn.Conv2d, by_pixel: bool) -> Patches | None:
    one = conv.kernel_size == (1, 1)  # of a single pixel both orders are one
    return find_patches(x, conv, by_pixel=by_pixel or (one and lies_by_pixel(x)))


def _matrix(name: str, patches: Patches, samples: int) -> Matrix:
    length = -(-patches.count // TERMS) * TERMS
    return Matrix(name, patches.size, 1, length, by_pixel=False, scale=1 / samples)
