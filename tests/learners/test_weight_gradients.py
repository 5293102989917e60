"""Gradients of the weights of several convolutions by one kernel, against PyTorch's in float64.

On a GPU, or in Triton's interpreter, see ``interpreter.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import torch
from interpreter import INTERPRETED, NEEDS_TRITON, device_of_kernels
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel import weight_gradients
from ocar.accel.weight_gradients import Gradients, Job, WeightGradients

pytestmark = NEEDS_TRITON
CLOSE = 1e-6 if INTERPRETED else 2e-3
"""Of the norm: a GPU rounds what it multiplies to eleven bits."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    if INTERPRETED:
        monkeypatch.setattr(
            weight_gradients, "run_side_by_side", lambda jobs, _: [job() for job in jobs]
        )
    return device_of_kernels(monkeypatch, weight_gradients)


class Layers:
    """Convolutions one after another, what went in, and gradients at what came out."""

    def __init__(self, model: nn.Sequential, x: Tensor, *, by_pixel: bool = False) -> None:
        self.model = model
        self.seen: dict[nn.Conv2d, tuple[Tensor, Tensor]] = {}
        self.gradients = WeightGradients(model, x.device)
        generator = torch.Generator().manual_seed(0)
        kind = torch.channels_last if by_pixel else torch.contiguous_format
        with self.gradients.prepared():
            for layer in model:
                x = x.contiguous(memory_format=kind)
                y = layer(x)
                g = torch.randn(y.shape, generator=generator).to(x.device)
                self.seen[cast("nn.Conv2d", layer)] = x, g.contiguous(memory_format=kind)
                x = y.detach().relu()

    def wanted(self, layer: nn.Conv2d) -> Tensor:
        x, g = (t.double() for t in self.seen[layer])
        weight = layer.weight.detach().double().requires_grad_()
        y = functional.conv2d(x, weight, None, layer.stride, layer.padding)
        return torch.autograd.grad(y, weight, g)[0]

    def found(self) -> Gradients:
        """In the order of a backward pass; fails if a layer is left to the library."""
        jobs: list[Job] = []
        for layer, (x, g) in reversed(self.seen.items()):
            jobs += self.gradients.add(layer, x, g, self.fail)
        assert not self.gradients.left()
        return [pair for job in jobs for pair in job()]

    @staticmethod
    def fail() -> Gradients:
        raise AssertionError("The library was asked.")

    def check(self) -> None:
        found = {id(parameter): gradient for parameter, gradient in self.found()}
        assert len(found) == len(self.seen)
        for layer in self.seen:
            gradient, wanted = found[id(layer.weight)], self.wanted(layer)
            assert gradient.stride() == layer.weight.stride()
            assert (gradient - wanted).norm() <= CLOSE * wanted.norm()


def conv(
    channels: int, outputs: int, side: int = 3, stride: int = 1, padding: int = 1
) -> nn.Conv2d:
    return nn.Conv2d(channels, outputs, side, stride, padding, bias=False)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("images", [1, 3, 20])
def test_images_pixel_by_pixel(images: int, device: torch.device) -> None:
    model = nn.Sequential(
        conv(3, 5),
        conv(5, 8, stride=2),
        conv(8, 40, 1, 2, 0),
        conv(40, 36),
        conv(36, 4),
        conv(4, 4, 2, 1, 0),
        conv(4, 6, 3, 2, 0),
    ).to(device)
    Layers(model, torch.rand(images, 3, 23, 18).to(device), by_pixel=True).check()


@pytest.mark.parametrize(("images", "height", "width"), [(1, 32, 32), (3, 2, 16), (20, 16, 16)])
def test_images_channel_by_channel(
    images: int, height: int, width: int, device: torch.device
) -> None:
    model = nn.Sequential(conv(3, 5), conv(5, 40), conv(40, 36), conv(36, 4)).to(device)
    Layers(model, torch.rand(images, 3, height, width).to(device)).check()


def test_rows_that_do_not_fit(device: torch.device) -> None:
    layers = Layers(nn.Sequential(conv(3, 5)).to(device), torch.rand(2, 3, 10, 10).to(device))
    (layer,) = layers.seen
    assert layers.gradients.add(layer, *layers.seen[layer], layers.fail) == [layers.fail]


def test_aligned_channels_of_kernels_that_lie_by_pixel(device: torch.device) -> None:
    model = nn.Sequential(conv(8, 80), conv(80, 12, stride=2), conv(12, 12)).to(device)
    for layer in model:
        layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    Layers(model, torch.rand(4, 8, 9, 7).to(device), by_pixel=True).check()


def test_another_size_later(device: torch.device) -> None:
    model = nn.Sequential(conv(3, 5), conv(5, 7)).to(device)
    layers = Layers(model, torch.rand(2, 3, 8, 8).to(device))
    layers.check()
    with layers.gradients.prepared():
        model(torch.rand(2, 3, 4, 8).to(device))
    layer, seen = next(iter(layers.seen.items()))
    assert layers.gradients.add(layer, *seen, layers.fail) == [layers.fail]


def test_what_does_not_fit_is_left_alone(device: torch.device) -> None:
    model = nn.Sequential(conv(3, 5), conv(5, 7), conv(7, 7)).to(device)
    layers = Layers(model, torch.rand(4, 3, 8, 8).to(device))
    add, (first, one, other) = layers.gradients.add, layers.seen
    assert len(add(first, *layers.seen[first], layers.fail)) == 1  # it waits for no other
    (x, g), seen = layers.seen[one], layers.seen[other]
    assert add(other, *seen, layers.fail) == []
    assert add(other, *seen, layers.fail) == [layers.fail]  # twice
    assert add(one, x[:2], g[:2], layers.fail) == [layers.fail]  # not as many images
    assert layers.gradients.left() == [layers.fail]
    assert layers.gradients.left() == []


def test_layers_of_other_kinds_are_none_of_its_business(device: torch.device) -> None:
    others = [
        nn.Conv2d(3, 4, 3, bias=True),
        nn.Conv2d(4, 4, 3, groups=2, bias=False),
        nn.Conv2d(4, 4, 3, dilation=2, bias=False),
        nn.Conv2d(4, 4, (1, 3), bias=False),
        nn.Conv2d(4, 4, 5, padding=2, bias=False),
        nn.Conv2d(4, 4, 3, padding="same", bias=False),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", bias=False),
    ]
    layers = Layers(nn.Sequential(*others).to(device), torch.rand(2, 3, 16, 16).to(device))
    for layer, (x, g) in layers.seen.items():
        assert layers.gradients.add(layer, x, g, layers.fail) == [layers.fail]


def test_without_tensor_cores_the_library_does_it(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = Layers(nn.Sequential(conv(3, 5)).to(device), torch.rand(2, 3, 8, 8).to(device))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    (layer,) = layers.seen
    assert layers.gradients.add(layer, *layers.seen[layer], layers.fail) == [layers.fail]


def test_what_cannot_be_compiled_is_the_librarys(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(products: object) -> None:
        raise TypeError("a tuple is no argument")

    monkeypatch.setattr(weight_gradients._Products, "compile", fail)
    model, x = nn.Sequential(conv(3, 5)).to(device), torch.rand(2, 3, 8, 8).to(device)
    with pytest.warns(UserWarning, match="^Gradients of weights .* a tuple is no argument$"):
        layers = Layers(model, x)
    with layers.gradients.prepared():
        model(x)  # it is not tried again
    (layer,) = layers.seen
    assert layers.gradients.add(layer, *layers.seen[layer], layers.fail) == [layers.fail]


def test_large_layers_are_the_librarys(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_gradients, "_LARGEST", 5 * 27 * 2 * 64 - 1)
    layers = Layers(nn.Sequential(conv(3, 5)).to(device), torch.rand(2, 3, 8, 8).to(device))
    (layer,) = layers.seen
    assert layers.gradients.add(layer, *layers.seen[layer], layers.fail) == [layers.fail]
