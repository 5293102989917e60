"""A of several convolutions by kernels of our own, against one product for each in float64.

On a GPU, or in Triton's interpreter, see ``interpreter.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from interpreter import INTERPRETED, NEEDS_TRITON, device_of_kernels
from ocar.curvature.many_inputs import ManyInputs
from torch import Tensor, nn

from ocar.accel import gram as many_squares
from ocar.accel import patches
from ocar.curvature import factors

pytestmark = NEEDS_TRITON
CLOSE = 1e-6 if INTERPRETED else 2e-3
"""Of the norm: a GPU rounds what it multiplies to eleven bits."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return device_of_kernels(monkeypatch, many_squares, patches)


@dataclass
class Layers:
    """Convolutions, what goes into them, and where A of each is to be."""

    convs: dict[str, tuple[nn.Conv2d, bool]] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    end: int = 0

    def add(self, conv: nn.Conv2d, *size: int, by_pixel: bool, device: torch.device) -> None:
        name = f"layer {len(self.convs)}"
        generator = torch.Generator().manual_seed(len(self.convs))
        images, *sides = size
        shape = (images, conv.in_channels, *sides)
        x = torch.randn(shape, generator=generator, dtype=torch.float32).to(device)
        kind = torch.channels_last if by_pixel else torch.contiguous_format
        self.inputs[name] = x.contiguous(memory_format=kind)
        self.convs[name] = conv, by_pixel
        self.starts[name] = self.end
        self.end += self.size(name) ** 2

    def size(self, name: str) -> int:
        conv = self.convs[name][0]
        return conv.in_channels * conv.kernel_size[0] ** 2

    def wanted(self, name: str) -> Tensor:
        conv, by_pixel = self.convs[name]
        x = self.inputs[name].double()
        a = factors.conv_inputs(x, conv, bias=False, by_pixel=by_pixel)
        return factors.input_factor(a, sharing="expand")[0]

    def found(self, name: str, out: Tensor) -> Tensor:
        size, start = self.size(name), self.starts[name]
        return out[start : start + size**2].view(size, size)


def seven_layers(device: torch.device, *, images: int = 5) -> Layers:
    layers = Layers()
    for conv, side, by_pixel in (
        (nn.Conv2d(3, 4, 3, padding=1), 12, False),
        (nn.Conv2d(9, 4, 3, padding=1), 12, False),
        (nn.Conv2d(9, 4, 3, padding=1, stride=2), 12, False),
        (nn.Conv2d(9, 4, 1, stride=2), 12, False),
        (nn.Conv2d(20, 4, 3, padding=1), 6, True),
        (nn.Conv2d(20, 4, 1, stride=2), 6, True),
        (nn.Conv2d(20, 4, 3), 3, True),
    ):
        layers.add(conv, images, side, side, by_pixel=by_pixel, device=device)
    return layers


def test_layers_of_all_kinds(device: torch.device) -> None:
    layers = seven_layers(device)
    out = torch.zeros(layers.end, dtype=torch.float32, device=device)
    many = ManyInputs()
    many.see(layers.inputs, layers.convs)
    many.prepare(layers.starts, out)
    done: set[str] = set()
    for name, x in layers.inputs.items():
        conv, by_pixel = layers.convs[name]
        more = many.add(name, x, conv, out, by_pixel=by_pixel)
        assert more is not None
        done |= more
    assert done == set(layers.convs)  # five together, and two
    for name in layers.convs:
        found, wanted = layers.found(name, out), layers.wanted(name)
        assert (found - wanted).norm() <= CLOSE * wanted.norm()


def test_what_was_not_prepared(device: torch.device) -> None:
    layers, fewer = seven_layers(device), seven_layers(device, images=4)
    out = torch.zeros(layers.end, dtype=torch.float32, device=device)
    many = ManyInputs()
    for _ in range(2):
        many.see(layers.inputs, layers.convs)
        many.prepare(layers.starts, out)
    name, (conv, by_pixel) = next(iter(layers.convs.items()))
    x = layers.inputs[name]

    def add(name: str, x: Tensor) -> set[str] | None:
        return many.add(name, x, conv, out, by_pixel=by_pixel)

    assert add(name, fewer.inputs[name]) is None  # not as many samples
    assert add("another", x) is None
    assert add(name, x[:, :, :11].contiguous()) is None  # of another size
    assert add(name, x) == set()
    assert add(name, x) is None  # twice
    many.clear()
    assert add(name, x) == set()
    many.forget()
    assert add(name, x) is None
