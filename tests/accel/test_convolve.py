"""The kernel for convolutions with few channels, against PyTorch in single precision."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from implementations import GPU, on_interpreter
from tiny_resnet import TinyResNet
from tolerances import FLOAT16_NETWORK
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from ocar.accel import folded

# Images, channels, outputs, side of the kernel, stride, height and width.
SHAPES = {
    "stem": (2, 8, 24, 3, 1, 9, 8),
    "stage 1": (1, 24, 24, 3, 1, 8, 8),
    "stage 2, first": (1, 24, 64, 3, 2, 8, 8),
    "stage 2, shortcut": (2, 24, 64, 1, 2, 8, 8),
    "not a power of 2": (1, 24, 40, 3, 2, 8, 8),
    "odd": (3, 16, 8, 3, 1, 7, 5),
    "odd, with a stride": (3, 32, 16, 3, 2, 7, 5),
    "odd, 1×1 with a stride": (3, 32, 16, 1, 2, 7, 5),
    "one pixel": (1, 8, 8, 3, 1, 1, 1),
    "many outputs": (1, 8, 136, 3, 1, 5, 4),
}
CLOSE = {"rtol": 2e-3, "atol": 2e-3}
"""A result is rounded once, to eleven bits."""


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=on_interpreter, id="interpreter"),
        pytest.param("cuda", marks=GPU, id="gpu"),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def convolve(device: torch.device) -> Callable[..., Tensor]:
    return importlib.import_module("ocar.accel.triton.convolution").convolve


class Layer:
    """Random images, weights, bias and shortcut."""

    def __init__(self, shape: str, device: torch.device) -> None:
        n, channels, outputs, side, stride, height, width = SHAPES[shape]
        generator = torch.Generator().manual_seed(0)

        def random(*sizes: int) -> Tensor:
            values = torch.randn(*sizes, generator=generator).half().to(device)
            last = torch.channels_last if len(sizes) == 4 else torch.contiguous_format
            return values.contiguous(memory_format=last)

        self.x = random(n, channels, height, width)
        self.weight = random(outputs, channels, side, side) / (channels * side**2) ** 0.5
        self.bias = random(outputs)
        self.geometry = {"stride": stride, "padding": side // 2}
        self.shortcut = random(*self.expected(bias=False).shape)

    def expected(self, *, bias: bool = True, shortcut: bool = False, relu: bool = False) -> Tensor:
        x, weight = self.x.cpu().float(), self.weight.cpu().float()
        shift = self.bias.cpu().float() if bias else None
        y = functional.conv2d(x, weight, shift, **self.geometry)
        y = y + self.shortcut.cpu().float() if shortcut else y
        return y.relu() if relu else y


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("bias", "shortcut", "relu"), [(True, True, True), (True, False, True), (False, False, False)]
)
def test_values(
    convolve: Callable[..., Tensor],
    device: torch.device,
    shape: str,
    bias: bool,
    shortcut: bool,
    relu: bool,
) -> None:
    layer = Layer(shape, device)
    given = layer.bias if bias else None, layer.shortcut if shortcut else None
    y = convolve(layer.x, layer.weight, *given, relu=relu, **layer.geometry)
    assert y.dtype == torch.float16
    assert y.is_contiguous(memory_format=torch.channels_last)
    expected = layer.expected(bias=bias, shortcut=shortcut, relu=relu)
    assert_close(y.cpu().float(), expected, **CLOSE)


@pytest.mark.parametrize("pixels", [64, 256])
@pytest.mark.parametrize("terms", [16, 64])
def test_however_the_work_is_cut(
    convolve: Callable[..., Tensor], device: torch.device, pixels: int, terms: int
) -> None:
    layer = Layer("odd, with a stride", device)
    how: dict[str, Any] = {"pixels": pixels, "terms": terms}
    y = convolve(layer.x, layer.weight, layer.bias, **layer.geometry, **how)
    assert_close(y.cpu().float(), layer.expected(), **CLOSE)


def test_channels_of_zeros_stay_zero(convolve: Callable[..., Tensor], device: torch.device) -> None:
    layer = Layer("not a power of 2", device)
    layer.weight[20:], layer.bias[20:] = 0, 0
    y = convolve(layer.x, layer.weight, layer.bias, relu=True, **layer.geometry)
    assert y[:, :20].any()
    assert not y[:, 20:].any()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_stay(
    convolve: Callable[..., Tensor], device: torch.device, bad: float
) -> None:
    layer = Layer("odd", device)
    layer.x[1, 3, 2, 4] = bad
    y = convolve(layer.x, layer.weight, layer.bias, relu=True, **layer.geometry)
    expected = layer.expected(relu=True)
    assert not expected.isfinite().all()
    assert_close(y.cpu().float(), expected, equal_nan=True, **CLOSE)


@torch.no_grad()
def test_a_network(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Layers of few channels and shortcuts use the kernel; predictions are those in eval mode."""
    kernels = importlib.import_module("ocar.accel.triton.convolution")
    seen: list[tuple[int, ...]] = []
    real = kernels.convolve

    def convolve(x: Tensor, weight: Tensor, *others: Any, **how: Any) -> Tensor:
        seen.append((weight.shape[1], weight.shape[0], weight.shape[2]))
        return real(x, weight, *others, **how)

    monkeypatch.setattr(kernels, "convolve", convolve)
    if device.type == "cpu":
        monkeypatch.setattr(folded, "has_triton", lambda *tensors: True)
    model = TinyResNet(3, (20, 40), 9, units=7).eval()
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand_like(buffer) + ("var" in name))
    x = torch.randn(3, 3, 9, 9)
    expected = model(x)
    predicting = folded.fold(model.to(device), torch.float16)
    assert predicting is not None
    predicting.refresh_()
    logits = predicting(predicting.prepare(x.to(device))).cpu()
    assert (logits - expected).norm() < FLOAT16_NETWORK * expected.norm()
    # Input channels are padded to 8 and 24, 40 channels to 64; cuDNN takes the last layer.
    assert seen == [(8, 24, 3), (24, 24, 3), (24, 24, 3), (24, 64, 1), (24, 64, 3)]
