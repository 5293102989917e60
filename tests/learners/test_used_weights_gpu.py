"""Steps on attention, positions, inner padding and shared weights, recorded as CUDA graphs."""

from __future__ import annotations

import warnings

import pytest
import torch
from axes import InAxes
from torch import Tensor, nn
from torch.nn import functional as F

import ocar
from ocar.curvature import CURVATURES
from ocar.learner import Learner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]


class SamePadding(nn.Conv2d):
    """Pads inside its own ``forward``."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, self.stride)


class Everything(nn.Module):
    """Inner padding, transposed, tokens, positions, attention, an LSTM, a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.down = SamePadding(3, 8, 3, stride=2)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.patch = nn.Conv2d(8, 16, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 16) / 10)
        self.place = nn.Parameter(torch.randn(1, 5, 16) / 10)
        self.embed = nn.Embedding(6, 16)
        self.attend = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.recur = nn.LSTM(16, 16, batch_first=True)
        self.twice = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(self.up(self.down(x).relu())).flatten(2).mT
        hidden = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.place
        hidden = hidden + self.embed(torch.arange(5, device=x.device).unsqueeze(0))
        hidden = self.recur(self.attend(hidden))[0]
        return self.head(self.twice(self.twice(hidden).tanh()).mean(1))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(0, 256, (6, 3, 8, 8), generator=generator, dtype=torch.uint8).cuda(),
            torch.randint(0, 2 + index // 4, (6,), generator=generator),
        )
        for index in range(count)
    ]


def make(*, record: bool, **settings: object) -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Everything().to("cuda", torch.float64)
    common = {"lr": 1e-3, "tau": 0.1, "memory": 40, "replay_batch": 5, "standardize": False}
    return ocar.OCAR(model, record=record, **common, **settings)


@pytest.mark.parametrize("curvature", ["kfac", "axes", "foof"])
def test_recorded_is_eager(curvature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CURVATURES, "axes", InAxes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No curvature for", UserWarning)
        recorded = make(record=True, curvature=curvature)
        eager = make(record=False, curvature=curvature)
        warnings.filterwarnings("error", message="Going on without CUDA graphs")
        for x, y in batches(24):
            ours, theirs = recorded.learn(x, y), eager.learn(x, y)
            torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-6, atol=1e-8)
    assert recorded._steps.graph._recorded
    assert not recorded.transform.curvature._unseen
    states = [learner.state()[0] for learner in (recorded, eager)]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, states[1][name], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_factors_are_those_of_the_host(device: str) -> None:
    """One batch with the exact root; no random numbers."""
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    found = []
    for where in ("cpu", device):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = Everything().to(where, torch.float64)
        kfac = ocar.KFAC(model, damping=0.1, ema=1.0, fisher="exact")
        with kfac.record():
            outputs = model(x.to(where))
        kfac.update(outputs)
        found.append(kfac.state_dict())
    for name, tensor in found[0].items():
        if name.startswith("averages."):
            torch.testing.assert_close(tensor, found[1][name].cpu(), rtol=1e-7, atol=1e-10)
