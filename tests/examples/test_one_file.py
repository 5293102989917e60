"""OCAR in one file takes the library's steps, and is one file."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from scripts import ROOT, load_script
from torch import Tensor, nn

import ocar

FILE = "examples/ocar_in_one_file.py"
LONGEST = 250
BATCHES = 200
CLOSE = 1e-6
"""The largest difference that a weight may have, in float64."""


@pytest.fixture(scope="module")
def one_file() -> ModuleType:
    return load_script(FILE)


class SameDraws:
    """The library's memory, in the words of the one file: the same samples stay and are drawn."""

    def __init__(self, capacity: int) -> None:
        self.memory = ocar.ClassBalancedMemory(capacity, seed=0)

    def draw(self, count: int) -> tuple[Tensor, Tensor] | None:
        batch = self.memory.gather(self.memory.draw(count))
        return (batch.x, batch.y) if len(batch) else None

    def add(self, x: Tensor, y: Tensor) -> None:
        self.memory.add(x, y)


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 15), nn.Tanh(), nn.Linear(15, 16)
    )


def convnet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 16),
    )


@pytest.mark.long
@pytest.mark.parametrize("make", [mlp, convnet])
def test_the_weights_are_those_of_the_library(
    one_file: ModuleType, make: Callable[[], nn.Sequential]
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = make().double()
    ours = copy.deepcopy(theirs)
    chosen = {"lr": 0.01, "tau_step": 1e-5, "ema": 0.1, "n_new": 2}
    library = ocar.OCAR(ours, **chosen, memory=40, fisher="exact", standardize=False)
    alone = one_file.OCAR(theirs, theirs[-1], SameDraws(40), **chosen)
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(10, 1, 6, 6, generator=generator, dtype=torch.float64)
    start = ours[-1].weight.detach().clone()
    for batch in range(BATCHES):
        labels = torch.randint(2, (10,), generator=generator) + 2 * (batch // (BATCHES // 5))
        noise = torch.randn(10, 1, 6, 6, generator=generator, dtype=torch.float64)
        library.learn(centres[labels] + noise, labels)
        alone.learn(centres[labels] + noise, labels)
    assert library.steps == alone.steps == 3 * BATCHES
    assert float((ours[-1].weight.detach() - start).abs().max()) > 0.1, "nothing was learned"
    state = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        assert float((tensor - state[name]).abs().max()) < CLOSE, name


def test_its_own_memory_gives_every_class_its_share(one_file: ModuleType) -> None:
    memory = one_file.ClassBalanced(12, seed=0)
    for unit in (0, 1, 2):
        memory.add(torch.full((30, 1), float(unit)), torch.full((30,), unit))
    assert {unit: len(held) for unit, held in memory.held.items()} == {0: 4, 1: 4, 2: 4}
    x, y = memory.draw(100)
    assert sorted(y.tolist()) == [0] * 4 + [1] * 4 + [2] * 4
    assert torch.equal(x.squeeze(1), y.float())
    assert memory.draw(5)[0].shape == (5, 1)


def test_its_memory_is_a_uniform_sample_of_a_class(one_file: ModuleType) -> None:
    held = torch.zeros(20)
    for seed in range(400):
        memory = one_file.ClassBalanced(5, seed=seed)
        memory.add(torch.arange(20).unsqueeze(1), torch.zeros(20, dtype=torch.int64))
        held[torch.cat(memory.held[0])] += 1
    # Of 400 draws of 5 in 20 each is held 100 times, give or take five standard deviations.
    assert float((held - 100).abs().max()) < 5 * (400 * 0.25 * 0.75) ** 0.5


def test_it_is_short_and_stands_alone() -> None:
    text = (ROOT / FILE).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    imported = re.findall(r"^\s*(?:from|import) (\w+)", text, flags=re.MULTILINE)
    assert set(imported) == {"__future__", "typing", "torch"}


def test_it_runs(one_file: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng(devices=[]):
        one_file.main()
    lines = capsys.readouterr().out.splitlines()
    er, careful = ([float(part) for part in re.findall(r"([\d.]+)%", line)] for line in lines)
    assert careful[0] > er[0], "the first pair at its worst"
    assert careful[1] > 80, "all ten classes"
