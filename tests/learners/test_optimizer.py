"""The state of an optimizer as tensors by name, and its growth with the head."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from cases import accuracy, blobs
from torch import Tensor, nn
from torch.testing import assert_close
from toys import assert_same, everything, mlp, registered

from ocar.errors import CheckpointError
from ocar.learner import Learner
from ocar.methods.er import ERSettings
from ocar.optimizer import fit_optimizer_, load_optimizer, save_optimizer
from ocar.state import load_state, save_state

Make = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.99), weight_decay=1e-4),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "two groups": lambda p: torch.optim.Adam([{"params": p[:1]}, {"params": p[1:], "lr": 0.5}]),
}
EVERY_OPTIMIZER = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


def parameters(rows: int = 3) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=generator)) for s in ((rows, 2), (rows,), (4,))]


def take_steps(optimizer: torch.optim.Optimizer, own: Sequence[nn.Parameter], count: int) -> None:
    for step in range(count):
        generator = torch.Generator().manual_seed(step)
        for parameter in own:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@EVERY_OPTIMIZER
@pytest.mark.parametrize("before", [0, 3])
def test_a_restored_optimizer_goes_on_to_the_bit(make: Make, before: int, tmp_path: Path) -> None:
    ours = parameters()
    optimizer = make(ours)
    take_steps(optimizer, ours, before)
    save_state(tmp_path / "state", save_optimizer(optimizer), {})
    theirs = copy.deepcopy(ours)
    restored = make(theirs)
    load_optimizer(restored, load_state(tmp_path / "state")[0])
    assert_same(save_optimizer(restored), save_optimizer(optimizer))
    take_steps(optimizer, ours, 4)
    take_steps(restored, theirs, 4)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_loading_copies_and_forgets_what_was_there() -> None:
    own = parameters()
    optimizer = OPTIMIZERS["adam"](own)
    early = {name: t.clone() for name, t in save_optimizer(optimizer).items()}
    take_steps(optimizer, own, 2)
    late = {name: t.clone() for name, t in save_optimizer(optimizer).items()}
    other = OPTIMIZERS["adam"](parameters())
    load_optimizer(other, late)
    take_steps(other, own, 1)
    assert_same(save_optimizer(optimizer), late)  # what was given has not moved
    load_optimizer(optimizer, early)
    assert save_optimizer(optimizer) == {} == early


def test_plain_sgd_has_no_state() -> None:
    assert save_optimizer(None) == {}
    load_optimizer(None, {})
    fit_optimizer_(None)


@pytest.mark.parametrize(
    "state",
    [
        {"7.exp_avg": torch.zeros(3, 2)},
        {"x.exp_avg": torch.zeros(3, 2)},
        {"0.exp_avg": torch.zeros(3, 3)},
        {"0.exp_avg": torch.zeros(5, 2)},
        {"0.exp_avg": torch.zeros(3)},
    ],
)
def test_the_state_of_another_optimizer_is_refused(state: dict[str, Tensor]) -> None:
    optimizer = OPTIMIZERS["adam"](parameters())
    with pytest.raises(CheckpointError, match=r"is of another optimizer: '.*exp_avg' has shape"):
        load_optimizer(optimizer, state)
    assert not optimizer.state
    with pytest.raises(CheckpointError, match=r"has an optimizer: \['.*exp_avg'\]. Here: none"):
        load_optimizer(None, state)


@EVERY_OPTIMIZER
def test_rows_that_are_added_start_from_nothing_and_the_others_go_on(make: Make) -> None:
    """As in a larger layer whose last rows had no gradient before.

    Without weight decay, which would have moved those rows.
    """
    small, large = parameters(3), parameters(3)
    added = [torch.randn(3, 2), torch.randn(3)]
    for parameter, rows in zip(large, added, strict=False):
        parameter.data = torch.cat([parameter.data, rows])
    ours, theirs = make(small), make(large)
    for optimizer in (ours, theirs):
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
    for step in range(5):
        if step == 3:
            for parameter, rows in zip(small, added, strict=False):
                parameter.data = torch.cat([parameter.data, rows])
            fit_optimizer_(ours)
        generator = torch.Generator().manual_seed(step)
        for one, other in zip(small, large, strict=True):
            other.grad = torch.randn(other.shape, generator=generator)
            if step < 3 and other.dim() + len(other) > 5:  # those that grow
                other.grad[3:] = 0
            one.grad = other.grad[: len(one)].clone()
        ours.step()
        theirs.step()
    for one, other in zip(small, large, strict=True):
        assert_close(one, other, rtol=1e-6, atol=1e-6)


@dataclass(frozen=True, kw_only=True)
class AdamSettings(ERSettings):
    """Replay with Adam."""

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.lr)


@pytest.fixture
def adam() -> Iterator[None]:
    with registered(adam=AdamSettings):
        yield


@pytest.mark.usefixtures("adam")
def test_a_learner_with_an_optimizer_of_its_own() -> None:
    """It learns, its head doubles twice, and a restored one goes on to the bit."""
    learner = Learner(mlp(units=2), AdamSettings(lr=0.02, memory=40))
    stream = [b for labels in ([0, 1], [2, 3, 4], [5, 0]) for b in blobs(15, labels)]
    restored = None
    for index, (x, y) in enumerate(stream):
        if index == 29:
            learner.remember(*next(blobs(1, [6, 7, 8])))  # the head grows, Adam does not know
            restored = Learner(mlp(units=2), AdamSettings(lr=0.02, memory=40))
            restored.load_state(*learner.state())
        learner.learn(x, y)
        if restored is not None:
            restored.learn(x, y)
    assert learner.model[2].out_features == 16
    assert learner._steps.optimizer.state[learner.model[2].weight]["exp_avg"].shape == (16, 8)
    assert_same(everything(restored), everything(learner))
    ((x, y),) = blobs(1, [0, 1, 2, 3, 4, 5], seed=5, size=200)
    assert accuracy(learner, x, y) > 0.8
