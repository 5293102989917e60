"""What an OCAR batch must do, counted from the shapes of the layers.

Counted are the least floating point operations that the method needs, a multiplication and an
addition as two, and the least bytes, as if each tensor were read or written once wherever it
is needed. For a layer with n samples, L locations a sample, d_in inputs and d_out outputs:

* forward: 2 n L d_in d_out, in each pass; backward: twice that, once for the first layer
* pull-back of a root with c columns: the half of backward that goes to the inputs, c times
* factors: n L d_in (d_in + 1) and c n L d_out (d_out + 1), since they are symmetric
* inverses: d_in³ + d_out³
* preconditioning: 2 (d_out² d_in + d_out d_in²), in each pass

A bias is one more input of the factors. BatchNorm counts with its bytes alone; activations count
as nothing, since they can be part of something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

NUMBER = 4
"""Bytes of a number in single precision."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A linear layer or a convolution without groups, or a BatchNorm, for one sample."""

    fan_in: int
    """Inputs of one output; 0 for BatchNorm."""

    outputs: int
    """Outputs at one location."""

    locations: int
    """Locations of a sample: pixels that come out."""

    numbers_in: int
    """Numbers that come in."""

    parameters: int
    """Numbers in weight and bias."""

    bias: bool
    """Whether there is a bias."""

    @property
    def numbers_out(self) -> int:
        """Numbers that go out."""
        return self.outputs * self.locations

    @property
    def inputs(self) -> int:
        """Rows of the factor of the inputs, d_in."""
        return self.fan_in + self.bias


@dataclass(frozen=True)
class Work:
    """Something to do."""

    operations: int = 0
    """Floating point operations."""

    bytes: int = 0
    """Bytes to read and write."""

    def __add__(self, other: Work) -> Work:
        return Work(self.operations + other.operations, self.bytes + other.bytes)

    def __mul__(self, times: int) -> Work:
        return Work(self.operations * times, self.bytes * times)


@torch.no_grad()
def layer_shapes(model: nn.Module, x: Tensor) -> list[Shape]:
    """The layers that a forward pass meets, in their order.

    Args:
        model: The model.
        x: Inputs, ``(n, ...)``; only their shape counts.
    """
    shapes: list[Shape] = []

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.BatchNorm2d)):
            weight, outputs = module.weight, output.shape[1]
            shapes.append(
                Shape(
                    fan_in=weight[0].numel() if weight.dim() > 1 else 0,
                    outputs=outputs,
                    locations=output[0].numel() // outputs,
                    numbers_in=inputs[0][0].numel(),
                    parameters=sum(p.numel() for p in module.parameters()),
                    bias=module.bias is not None,
                )
            )

    handles = [module.register_forward_hook(record) for module in model.modules()]
    training = model.training
    try:
        model.eval()(x)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return shapes


def count_batch(
    shapes: Sequence[Shape], *, samples: int, passes: int, columns: int
) -> dict[str, Work]:
    """The work of an OCAR batch by part, with a curvature that is renewed once.

    Args:
        shapes: The layers, in their order.
        samples: New and replayed samples of a pass.
        passes: Gradient steps a batch.
        columns: Columns of the Fisher's root.
    """
    layers = [shape for shape in shapes if shape.fan_in]
    later = layers[1:]
    parameters = sum(shape.parameters for shape in shapes)
    # Of all outputs of the BatchNorms, which come in and go out in each direction.
    normed = NUMBER * samples * sum(s.numbers_out for s in shapes if not s.fan_in)

    every_layer = _total(_product(shape, samples) for shape in layers)
    to_inputs = _total(_product(shape, samples) for shape in later)
    pulled = _total(_product(shape, samples * columns) for shape in later)
    return {
        "forward": (every_layer + Work(0, 2 * normed)) * passes,
        "backward": (every_layer + to_inputs + Work(0, 3 * normed)) * passes,
        "pull-back of the Fisher's root": pulled + Work(0, (2 * columns + 1) * normed),
        "factors": _total(_factors(shape, samples, columns) for shape in layers),
        "inverses": _total(map(_inverses, layers)),
        "preconditioning": _total(map(_preconditioning, layers)) * passes,
        "update": Work(2 * parameters, 3 * NUMBER * parameters) * passes,
    }


def _total(works: Iterable[Work]) -> Work:
    return sum(works, Work())


def _product(shape: Shape, samples: int) -> Work:
    """One product of a layer: forward, to its weights, or to its inputs."""
    numbers = samples * (shape.numbers_in + shape.numbers_out) + shape.parameters
    return Work(2 * samples * shape.locations * shape.fan_in * shape.outputs, NUMBER * numbers)


def _factors(shape: Shape, samples: int, columns: int) -> Work:
    """Both factors of a layer, taken into their averages."""
    a, g, rows = shape.inputs, shape.outputs, samples * shape.locations
    numbers = samples * (shape.numbers_in + columns * shape.numbers_out) + 2 * (a**2 + g**2)
    return Work(rows * (a * (a + 1) + columns * g * (g + 1)), NUMBER * numbers)


def _inverses(shape: Shape) -> Work:
    a, g = shape.inputs, shape.outputs
    return Work(a**3 + g**3, 2 * NUMBER * (a**2 + g**2))


def _preconditioning(shape: Shape) -> Work:
    a, g = shape.inputs, shape.outputs
    return Work(2 * (g**2 * a + g * a**2), NUMBER * (a**2 + g**2 + 2 * a * g))
