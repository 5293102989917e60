"""An update with the factors of many layers made together, as it is recorded, against an eager one.

On a GPU the tests of captured steps do the same. Here it is in Triton's interpreter, see
``interpreter.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from interpreter import INTERPRETED, NEEDS_TRITON, device_of_kernels
from test_pool import OneStream, into_pool, make_kfac
from torch import Tensor, nn

from ocar.accel import gram as many_squares
from ocar.accel import patches
from ocar.curvature import KFAC, kfac

pytestmark = [*NEEDS_TRITON, pytest.mark.skipif(not INTERPRETED, reason="for the interpreter")]


@pytest.fixture(autouse=True)
def single_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


class Branches(nn.Module):
    """Convolutions of all kinds, some of which lie pixel by pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.odd = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.wide = nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False)
        self.short = nn.Conv2d(8, 12, 1, stride=2, bias=False)
        self.head = nn.Linear(12, 6)
        self.wide.weight.data = self.wide.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.odd(torch.relu(self.stem(x))))
        x = x.contiguous(memory_format=torch.channels_last)
        return self.head(torch.relu(self.wide(x) + self.short(x)).mean((2, 3)))


def update(curvature: KFAC, seed: int) -> None:
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    with curvature.capture():
        outputs = curvature.model(x)
    curvature.update(outputs, weights=torch.tensor([1.0, 1, 1, 2, 2, 2]))


def spy_on(
    monkeypatch: pytest.MonkeyPatch, block: object, method: str, name: str, called: list[str]
) -> None:
    real = getattr(block, method)

    def spy(*args: object, **options: object) -> object:
        called.append(name)
        return real(*args, **options)

    monkeypatch.setattr(block, method, spy)


def test_as_one_layer_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    curvatures = []
    for _ in range(2):
        torch.manual_seed(0)
        curvatures.append(make_kfac(Branches()))
    ours, theirs = curvatures
    device_of_kernels(monkeypatch, many_squares, patches)
    for each in curvatures:
        update(each, 1)
    pool = into_pool(ours)
    ours._prepare_together(pool)
    with monkeypatch.context() as recording:
        recording.setattr(kfac, "is_capturing", lambda device: True)
        recording.setattr(kfac, "Lanes", OneStream)
        alone = {"A": [], "G": []}  # type: dict[str, list[str]]
        for name, block in ours.blocks.items():
            spy_on(recording, block, "estimate_inputs", name, alone["A"])
            spy_on(recording, block, "estimate_gradients", name, alone["G"])
        ours.clock = torch.tensor(1.0)
        update(ours, 2)
    update(theirs, 2)
    assert alone == {"A": ["odd", "head"], "G": ["odd"]}
    for name, block in theirs.blocks.items():
        for key, wanted in block.averages.items():
            found = ours.blocks[name].averages[key]
            assert (found - wanted).norm() <= 1e-6 * wanted.norm(), (name, key)
