"""How much a network's answers have changed: kernels of our own against PyTorch's.

On a GPU, or in Triton's interpreter, see ``interpreter.py``.
"""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from interpreter import INTERPRETED, NEEDS_TRITON, device_of_kernels
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from ocar.accel.divergence import MeasuredResNet, Tile, measured
from ocar.models import ResNet18, SlimResNet18, measuring
from ocar.models.head import mask_logits

pytestmark = NEEDS_TRITON
# Images, channels, outputs, stride, height and width, whether kernels lie by pixel.
SHAPES = {
    "stage 1": (1, 20, 20, 1, 8, 9, False),
    "stage 2, first": (1, 20, 40, 2, 9, 12, False),
    "stage 3": (2, 24, 40, 1, 4, 5, True),
    "stage 4, first": (2, 32, 48, 2, 5, 3, True),
    "odd channels": (3, 5, 7, 1, 3, 3, False),
    "two pixels": (2, 3, 18, 2, 1, 2, True),
}
TILES = {
    "as it is": None,
    "many pixels": Tile(pixels=64, block=32, split=1, terms=32, warps=4, stages=1),
    "split": Tile(pixels=16, block=16, split=4, terms=16, warps=4, stages=3),
}
CLOSE = {"rtol": 1e-4, "atol": 1e-4} if INTERPRETED else {"rtol": 5e-3, "atol": 5e-3}
"""A GPU rounds what it multiplies to eleven bits."""
ROUGH = CLOSE if INTERPRETED else {"rtol": 5e-2, "atol": 5e-2}
"""The difference of two pixels is made one by a norm, and what was rounded with it."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    if INTERPRETED:
        monkeypatch.setattr(measuring, "run_side_by_side", lambda jobs, _: None)
    return device_of_kernels(monkeypatch, measuring)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Layers:
    """Two convolutions with BatchNorm, a shortcut, and images."""

    def __init__(self, shape: str, device: torch.device) -> None:
        n, channels, outputs, stride, height, width, by_pixel = SHAPES[shape]
        self.first = nn.Conv2d(channels, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Sequential(
            nn.Conv2d(channels, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )
        self.norms = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.x = random(n, channels, height, width) + 3
        modules = self.first, self.second, self.shortcut, *self.norms
        with torch.no_grad():
            for module in modules:
                for index, parameter in enumerate(module.parameters()):
                    spread = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 1
                    parameter.copy_(random(*parameter.shape, seed=index + 1) * spread)
                module.to(device)
        if by_pixel:
            for conv in (self.first, self.second):
                conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
        compiled = importlib.import_module("ocar.accel.triton.divergence")
        self.ours = MeasuredResNet(SlimResNet18(width=1), compiled)
        self.device = device

    def made(self, *, shortcut: bool) -> tuple[Tensor, ...]:
        """Both convolutions, and what is joined in the end, ``(n, channels, h, w)``."""
        x = self.x.to(self.device).permute(0, 2, 3, 1).contiguous()
        beside = self.shortcut if shortcut else None
        first, short = self.ours._convolve(x, self.first, self.norms[0], beside)
        rectified = self.ours._join(first, None)
        second, _ = self.ours._convolve(rectified, self.second, self.norms[1])
        joined = self.ours._join(second, short)
        kept = first.y if short is None else short.y
        again = self.ours._join(second, kept)
        results = first.y, second.y, joined, again
        return tuple(result.permute(0, 3, 1, 2).cpu() for result in results)

    @torch.no_grad()
    def expected(self, *, shortcut: bool) -> tuple[Tensor, ...]:
        """The same in double precision."""

        def norm(layer: nn.Module, x: Tensor) -> Tensor:
            weight, bias = (p.detach().double().cpu() for p in layer.parameters())
            return functional.batch_norm(x, None, None, weight, bias, training=True)

        def convolve(layer: nn.Module, x: Tensor) -> Tensor:
            assert isinstance(layer, nn.Conv2d)
            weight = layer.weight.double().cpu()
            return functional.conv2d(x, weight, stride=layer.stride, padding=layer.padding)

        x = self.x.double()
        first = convolve(self.first, x)
        second = convolve(self.second, norm(self.norms[0], first).relu())
        short = convolve(self.shortcut[0], x) if shortcut else first
        beside = norm(self.shortcut[1], short) if shortcut else torch.zeros(())
        normed = norm(self.norms[1], second)
        return first, second, (normed + beside).relu(), (normed + short).relu()


@pytest.mark.parametrize("cut", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layers(
    device: torch.device, shape: str, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = TILES[cut]
    if own is not None:
        monkeypatch.setattr(measuring, "tile", lambda count, outputs: own)
    layers = Layers(shape, device)
    for shortcut in (True, False):
        found = layers.made(shortcut=shortcut)
        for ours, expected in zip(found, layers.expected(shortcut=shortcut), strict=True):
            assert_close(ours, expected.float(), **(CLOSE if shape != "two pixels" else ROUGH))
        again = layers.made(shortcut=shortcut)
        assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays(device: torch.device, bad: float) -> None:
    layers = Layers("stage 3", device)
    layers.x[1, 2, 3, 4] = bad
    first, second, joined, _ = layers.made(shortcut=True)
    expected = layers.expected(shortcut=True)
    assert torch.equal(first.isfinite(), expected[0].isfinite())
    assert not second.isfinite().any()
    assert joined.isnan().all()


def test_a_mean_far_from_zero(device: torch.device) -> None:
    """The variance is that of what is left without the mean."""
    layers = Layers("stage 1", device)
    with torch.no_grad():
        layers.first.weight.zero_()
        layers.first.weight[:, 0, 1, 1] = 1.0
    layers.x[:, 0] = 4096 + 4 * random(*layers.x[:, 0].shape).round()  # these are not rounded
    _, second, *_ = layers.made(shortcut=False)
    assert_close(second, layers.expected(shortcut=False)[1].float(), rtol=1e-2, atol=1e-2)


class Question:
    """A network, images, and log-probabilities from before."""

    def __init__(
        self, device: torch.device, *, size: int = 25, width: int = 4, units: int = 6, n: int = 3
    ) -> None:
        torch.manual_seed(0)
        self.model = SlimResNet18(size, width=width, classes=units).to(device).train()
        self.x = random(n, 3, size, size).to(device)
        self.active = torch.arange(units, device=device) < units - 1
        rows = random(n - 1, units, seed=1).to(device)
        self.before = functional.log_softmax(mask_logits(rows, self.active), dim=-1)

    @torch.no_grad()
    def expected(self) -> Tensor:
        """In double precision, on a CPU."""
        model, before = copy.deepcopy(self.model).double().cpu(), self.before.double().cpu()
        outputs = model(self.x.double().cpu())[-len(before) :]
        after = functional.log_softmax(mask_logits(outputs, self.active.cpu()), dim=-1)
        return (before.exp() * (before - after)).sum(-1).float().to(self.before.device)

    def found(self) -> Tensor | None:
        ours = measured(self.model)
        return None if ours is None else ours.divergences(self.x, self.active, self.before)


@pytest.mark.parametrize("size", [25, 57])
def test_a_network(device: torch.device, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it changes, also where there are several windows to take the mean of."""
    if INTERPRETED and size > 32:  # the interpreter takes its time for each program
        large = Tile(pixels=1024, block=32, split=1, terms=64, warps=4, stages=1)
        monkeypatch.setattr(measuring, "tile", lambda count, outputs: large)
    question = Question(device, size=size, n=3 if size < 32 else 2)
    before = {name: t.clone() for name, t in question.model.state_dict().items()}
    found = question.found()
    assert found is not None
    assert all(torch.equal(t, before[name]) for name, t in question.model.state_dict().items())
    assert_close(found, question.expected(), **CLOSE)


@torch.no_grad()
def test_another_pooling_and_other_layouts(device: torch.device) -> None:
    question = Question(device, n=2)
    for block in question.model.blocks[4:]:
        for conv in (block.conv1, block.conv2):
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    for pool in (nn.AdaptiveAvgPool2d(1), nn.MaxPool2d(4)):  # the last is not the kernel's
        question.model.pool = pool
        found = question.found()
        assert found is not None
        assert_close(found, question.expected(), **CLOSE)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_weight_that_is_not_a_number_shows(device: torch.device) -> None:
    question = Question(device, n=2)
    with torch.no_grad():
        question.model.blocks[3].conv2.weight[1, 1, 1, 1] = float("nan")
    found = question.found()
    assert found is not None
    assert found.isnan().all()


def test_what_there_are_no_kernels_for(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question(device)
    model, ours = question.model, measured(question.model)
    given = question.x, question.active, question.before
    assert ours is not None
    assert measured(nn.Sequential(nn.Linear(3, 4)).to(device)) is None
    assert measured(ResNet18().to(device)) is None  # its stem is 7×7
    assert ours.divergences(question.x.double(), *given[1:]) is None
    assert ours.divergences(question.x.repeat(2000, 1, 1, 1), *given[1:]) is None
    model.blocks[2].bn1.eval()
    assert ours.divergences(*given) is None
    model.train()
    handle = model.blocks[2].conv1.register_forward_hook(lambda *_: None)
    assert ours.divergences(*given) is None
    handle.remove()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert ours.divergences(*given) is None


def test_a_compiler_that_fails(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("No.\nMore.")

    question = Question(device)
    monkeypatch.setattr(MeasuredResNet, "_rehearse", fail)
    with pytest.warns(UserWarning, match="Measures of what steps change take.*: No\\.$"):
        assert question.found() is None


def test_hundreds_of_units(device: torch.device) -> None:
    question = Question(device, n=2, units=150)
    found = question.found()
    assert found is not None
    assert_close(found, question.expected(), **CLOSE)
