"""FOOF: gradient descent on the outputs of each layer, by the inputs' second moments alone.

Benzing, "Gradient Descent on Neurons and its Link to Approximate Second-order
Optimization" (ICML 2022). It is K-FAC with G = I:

    ∇ ← ∇ (A + τI)⁻¹.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from ocar import accel
from ocar.accel import linalg
from ocar.curvature.blocks import Blocks, Seen
from ocar.curvature.layers import Layer, MatrixLayer
from ocar.curvature.layerwise import LayerCurvature


class InputBlocks(Blocks[MatrixLayer]):
    """A for linear layers and convolutions."""

    about = "second moments of inputs"
    symmetric: ClassVar[tuple[str, ...]] = ("A",)

    def statistics(self, layer: MatrixLayer) -> dict[str, tuple[int, ...]]:
        """A alone."""
        return {"A": layer.shapes()["A"]}

    def estimate_inputs(self, seen: Mapping[str, Seen]) -> None:
        """A of a batch."""
        operands = [partial(self._inputs, self.layers[name], own) for name, own in seen.items()]
        scales = [1 / own.x.shape[0] for own in seen.values()]
        accel.gram(operands, scales, [self.buffer.estimate(f"{name}.A") for name in seen])

    def _inputs(self, layer: MatrixLayer, own: Seen) -> Tensor:
        """The terms of A, ``(n, groups, d_in, L)``; L is 1 with ``"reduce"``."""
        a = own.inputs(layer)
        a = a.mean(-1, keepdim=True) if self.sharing == "reduce" else a
        return a if own.weights is None else a * own.weights.sqrt().view(-1, 1, 1, 1)

    def estimate(self, seen: Mapping[str, Seen]) -> None:
        """Nothing needs gradients."""

    def prepare(self, damping: Tensor | float) -> Tensor:
        """Invert the damped A."""
        return self._invert_averages("A", damping)

    def precondition_(self) -> None:
        """Multiply the gradients with the inverse of A."""
        for name, inverse in self.buffer.derived.get("inverses", {}).items():
            layer = self.layers[name]
            if layer.has_gradient:
                layer.replace_gradient(layer.gradient().to(inverse.dtype) @ inverse)

    def eigenvalues(self, layer: MatrixLayer, damping: float) -> Tensor:
        """The damped eigenvalues of A, once for each output."""
        values, _ = linalg.eigen(self.buffer.average(f"{layer.name}.A"), name=layer.name)
        return (values + damping).repeat_interleave(layer.d_out, dim=-1).flatten().sort().values

    def _saved(self, name: str, average: Tensor, *, back: bool = False) -> Tensor:
        layer, _, key = name.rpartition(".")
        return self.layers[layer].to_saved(average, back=back) if key == "A" else average


@dataclass(eq=False, repr=False)
class FOOF(LayerCurvature):
    """Preconditions the gradients of linear layers and convolutions with (A + τI)⁻¹."""

    def kinds(self) -> Mapping[type[Layer], type[Blocks[Any]]]:
        """A alone; other layers keep their gradient."""
        return {MatrixLayer: InputBlocks}
