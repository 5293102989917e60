"""K-FAC with the kernels of a GPU, run by Triton's interpreter, against K-FAC on the host."""

from __future__ import annotations

import copy

import pytest
import torch
from implementations import module, on_interpreter
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel import OPERATIONS, kronecker_triton
from ocar.curvature import KFAC

CLOSE = 1e-4
"""Relative error of a gradient after a damped inverse in single precision."""


class Branches(nn.Module):
    """Convolutions of all kinds, one of them channels last.

    ``short`` has 8 inputs: with fewer, PyTorch 2.13 writes past the end of the gradient of a 1 × 1
    convolution with stride 2 and images that are channels last, on processors without AVX-512.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.odd = nn.Conv2d(4, 8, 3, padding=1, groups=2)  # has no kernel for its patches
        self.wide = nn.Conv2d(8, 6, 3, stride=2, padding=1, bias=False)
        self.short = nn.Conv2d(8, 6, 1, stride=2, bias=False)
        self.head = nn.Linear(6, 5)
        self.wide.weight.data = self.wide.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.odd(torch.relu(self.stem(x))))
        x = x.contiguous(memory_format=torch.channels_last)
        return self.head(torch.relu(self.wide(x) + self.short(x)).mean((2, 3)))


@pytest.fixture
def _by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operations on factors choose kernels here."""
    for name in ("gram", "mix_and_damp", "invert", "precondition"):
        kept = [choice for choice in OPERATIONS[name]._choices if choice[0] == "triton"]
        monkeypatch.setattr(OPERATIONS[name], "_choices", kept)
    for home in (module("gram"), kronecker_triton):
        monkeypatch.setattr(home, "has_triton", lambda *tensors: True)
    whole = [("triton", lambda x, conv: conv.groups == 1)]
    monkeypatch.setattr(OPERATIONS["patches"], "_choices", whole)


def learn(model: nn.Module, steps: int) -> list[Tensor]:
    """Gradients of several steps, the last with one class more."""
    kfac = KFAC(model, damping=1e-2, ema=0.3, fisher="exact")
    generator, results = torch.Generator().manual_seed(1), []
    for step in range(steps):
        x = torch.randn(4, 3, 8, 8, generator=generator)
        active = torch.arange(5) < (4 if step < steps - 1 else 5)
        with kfac.record():
            outputs = model(x)
        kfac.update(outputs, weights=torch.tensor([1.0, 1, 2, 2]), active=active)
        model.zero_grad()
        functional.cross_entropy(outputs[:, :4], torch.arange(4)).backward()
        kfac.precondition_()
        results += [p.grad.clone() for p in model.parameters()]
    return results


@on_interpreter
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("largest", [2048, 30])
def test_steps_are_those_of_the_host(
    largest: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where some factors are too large for the kernels."""
    model = Branches()
    expected = learn(copy.deepcopy(model), 2)
    request.getfixturevalue("_by_kernels")
    monkeypatch.setattr(kronecker_triton, "LARGEST", largest)
    for found, wanted in zip(learn(model, 2), expected, strict=True):
        assert float((found - wanted).norm()) <= CLOSE * float(wanted.norm())
