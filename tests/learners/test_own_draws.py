"""Layers that draw from PyTorch's global generators: by the learner's seed, resumed to the bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from toys import assert_same, everything, mlp, seeded, vectors

import ocar
from ocar.accel import OwnDraws
from ocar.models.check import may_draw
from ocar.rng import make_generator

SETTINGS = {
    "er": {"lr": 0.1},
    "ocar": {"lr": 0.02, "tau_step": 1e-6, "ema": 0.2},
    "der": {"lr": 0.1, "alpha": 0.5},
    "gdumb": {"epochs": 2},
}
METHOD = pytest.mark.parametrize("method", SETTINGS)


def dropout() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 4)))


def noisy(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """An augmentation that does not use its generator."""
    return x + torch.randn(x.shape)


def make(method: str, model: nn.Module | None = None, **settings) -> ocar.Learner:
    settings = {"memory": 30, "passes": 2, **SETTINGS[method], **settings}
    return ocar.make_learner(method, dropout() if model is None else model, **settings)


def learn(learner: ocar.Learner, *, seed: int, batches: int = 3) -> dict[str, torch.Tensor]:
    """With another global seed each time."""
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    for x, y in vectors(batches, [0, 1, 2]):
        learner.learn(x, y)
        learner.predict(x)
    assert torch.equal(torch.get_rng_state(), before)
    return everything(learner)


@METHOD
def test_one_seed_gives_one_learner(method: str) -> None:
    first, again = make(method), make(method)
    assert_same(learn(first, seed=1), learn(again, seed=2))
    x, _ = next(vectors(1, [0, 1, 2]))
    assert torch.equal(first.predict(x), again.predict(x))
    other = make(method, seed=1)
    learn(other, seed=1)
    assert not torch.equal(first.predict(x), other.predict(x))


@METHOD
def test_resumed_to_the_bit(method: str, tmp_path: Path) -> None:
    learner = make(method)
    learn(learner, seed=1)
    learner.save(tmp_path / "file")
    resumed = ocar.load(tmp_path / "file", dropout())
    assert_same(learn(learner, seed=2), learn(resumed, seed=3))


def test_functions_of_the_users_draw_from_it_too() -> None:
    one, other = make("er", mlp(), augment=noisy), make("er", mlp(), augment=noisy)
    assert_same(learn(one, seed=1), learn(other, seed=2))


def test_each_step_draws_anew() -> None:
    masks = []
    model = dropout()
    model[1].register_forward_hook(
        lambda module, x, out: masks.append(out == 0) if module.training else None
    )
    learn(make("er", model, replay_batch=0), seed=1)
    assert len(masks) == 6
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 6


def test_an_error_leaves_the_global_generator_alone() -> None:
    model = dropout()
    learner = make("er", model)
    learn(learner, seed=1)

    def fail(*args: object) -> None:
        torch.rand(3)
        raise KeyboardInterrupt

    handle = model[2].register_forward_hook(fail)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    x, y = next(vectors(1, [0, 1]))
    with pytest.raises(KeyboardInterrupt):
        learner.learn(x, y)
    assert torch.equal(torch.get_rng_state(), before)
    handle.remove()
    learner.learn(x, y)
    assert torch.equal(torch.get_rng_state(), before)


def test_learners_in_threads_are_those_without() -> None:
    """The global generator belongs to all threads: one learner at a time may replace it."""
    alone = [make("er", seed=seed) for seed in range(4)]
    for learner in alone:
        learn(learner, seed=1, batches=15)
    together = [make("er", seed=seed) for seed in range(4)]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    barrier = threading.Barrier(4)

    def run(learner: ocar.Learner) -> None:
        barrier.wait()
        for x, y in vectors(15, [0, 1, 2]):
            learner.learn(x, y)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, together))
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(alone, together, strict=True):
        assert_same(everything(one), everything(other))


def test_what_is_not_kept_is_drawn_again() -> None:
    draws = OwnDraws([make_generator(0, "test")])
    with draws():
        first = torch.rand(3)
        with draws(keep=False):
            second = torch.rand(3)
        assert torch.equal(torch.rand(3), second)
        assert draws.generators == (torch.default_generator,)
    with draws(keep=False):
        third = torch.rand(3)
    with draws():
        assert torch.equal(torch.rand(3), third)
    generator = make_generator(0, "test")
    assert torch.equal(torch.rand(3, generator=generator), first)


@pytest.mark.parametrize(
    ("make_part", "draws"),
    [
        (mlp, False),
        (lambda: ocar.make_model("slim-resnet18", image_shape=(3, 32, 32)), False),
        (lambda: nn.LSTM(2, 2), False),
        (lambda: ocar.CropFlip(), False),
        (lambda: None, False),
        (dropout, True),
        (lambda: nn.LSTM(2, 2, num_layers=2, dropout=0.1), True),
        (lambda: nn.MultiheadAttention(2, 1, dropout=0.1), True),
        (lambda: type("Own", (nn.Linear,), {"__module__": "mine"})(2, 2), True),
        (lambda: noisy, True),
    ],
)
def test_what_may_draw(make_part: Callable[[], object], draws: bool) -> None:
    assert may_draw(make_part()) is draws


def test_a_hook_or_a_replaced_forward_may_draw() -> None:
    hooked, replaced = mlp(), mlp()
    hooked[0].register_forward_hook(lambda module, x, out: out + torch.randn(8))
    replaced[1].forward = lambda x: x + torch.randn(8)
    assert may_draw(hooked)
    assert may_draw(replaced)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("record", [True, False])
def test_recorded_steps_draw_from_it_too(record: bool, tmp_path: Path) -> None:
    def run(learner: ocar.Learner, seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        before = torch.get_rng_state(), torch.cuda.get_rng_state()
        for x, y in vectors(6, [0, 1, 2]):
            learner.learn(x, y)
        after = torch.get_rng_state(), torch.cuda.get_rng_state()
        assert all(map(torch.equal, before, after))
        return everything(learner)

    first, again = (make("er", dropout().cuda(), record=record) for _ in range(2))
    fresh = everything(first)
    states = run(first, 1)
    assert_same(states, run(again, 2))
    moved = [n for n in states if n.startswith("generator.model") and "cuda" in n]
    assert [n for n in moved if not torch.equal(states[n], fresh[n])] == moved != []
    first.save(tmp_path / "file")
    resumed = ocar.load(tmp_path / "file", dropout().cuda())
    assert_same(run(first, 3), run(resumed, 4))
