"""Inputs and regression targets are standardised online."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, assert_same, everything, images, mlp, never_wait, seeded, vectors
from twins import assert_resumes

import ocar
from ocar.errors import CheckpointError, ConfigError
from ocar.guard import Guard
from ocar.learner import Learner
from ocar.serving import Serving
from ocar.standardize import RunningScale

METHODS = {
    "er": {"lr": 0.05},
    "ocar": {"lr": 0.02, "tau_step": 0.0, "ema": 0.1, "increments": "domains"},
}
REGRESSION = {"likelihood": "gaussian", "memory_kind": "reservoir"}

SHAPES = {  # the axes of a batch over which numbers share a mean and a variance
    (5,): 0,
    (3, 4, 4): (0, 2, 3),
    (4, 6): (0, 1, 2),
    (2, 3, 3, 3): (0, 1, 2, 3, 4),
}


def nothing(tensors: object, rows: object) -> None:
    """Nothing is undone."""


def learner_of(method: str, model: nn.Module, **settings: object) -> Learner:
    return ocar.make_learner(method, model, memory=40, **{**METHODS[method], **settings})


def network(inputs: int, outputs: int) -> nn.Module:
    return seeded(
        lambda: nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs))
    ).double()


def batches(x: np.ndarray, y: np.ndarray, *, size: int = 10) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(torch.tensor(x).split(size), torch.tensor(y).split(size), strict=True)


def mixed_regression() -> Iterator[tuple[Tensor, Tensor]]:
    """Features and targets of very different sizes."""
    for x, _ in vectors(6, [0, 1]):
        x = x * torch.tensor([1e-3, 1.0, 10.0, 1e3, 1e4, 1.0]) + 7.0
        yield x, x[:, :2] * 100 + 3


# The statistics


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_mean_and_the_variance_are_those_of_all_samples_so_far(shape: tuple[int, ...]) -> None:
    generator, scale, seen = torch.Generator().manual_seed(0), RunningScale(), []
    for size in (1, 7, 1, 20):
        x = 1e4 + 3 * torch.randn(size, *shape, generator=generator)
        scale.update(x, nothing)
        seen.append(x.double().numpy())
        every, axes = np.concatenate(seen), SHAPES[shape]
        mean, std = every.mean(axes, keepdims=True), every.std(axes, keepdims=True)
        expected = (every - mean) / np.where(std == 0, np.inf, std)
        got = scale(torch.tensor(every))
        assert_close(got, torch.tensor(expected), rtol=1e-9, atol=1e-9)
        assert_close(scale.invert(got), torch.tensor(every), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e8])
def test_a_feature_that_never_varied_is_ignored(value: float) -> None:
    scale, generator = RunningScale(), torch.Generator().manual_seed(0)
    for size in (1, 9, 1, 300):
        x = torch.randn(size, 2, generator=generator)
        x[:, 1] = value
        scale.update(x, nothing)
    other = torch.tensor([[0.0, value], [0.0, value + 2e8]])
    assert scale(other)[:, 1].tolist() == [0.0, 0.0]
    assert_close(scale.invert(scale(other))[:, 1], torch.tensor([value, value]).double())
    scale.update(other, nothing)
    assert scale(other)[1, 1] > 1


# What is standardised


def seen_by(learner: Learner, model: nn.Module, x: Tensor) -> Tensor:
    """What a model is given for raw samples."""
    found = []
    with model.register_forward_pre_hook(lambda module, given: found.append(given[0])):
        learner.predict(x)
    return found[0]


def test_inputs_of_the_model_have_mean_0_and_variance_1() -> None:
    model = mlp()
    learner = learner_of("er", model)
    stream = list(vectors(5, [0, 1]))
    for x, y in stream:
        learner.learn(100 * x + 3, y)
    every = torch.cat([100 * x + 3 for x, _ in stream])
    learner.remember(every, torch.zeros(len(every), dtype=torch.int64))  # counts like any batch
    given = seen_by(learner, model, every).double().numpy()
    assert np.allclose(given.mean(0), 0, atol=1e-6)
    assert np.allclose(given.std(0), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "make"),
    [
        ({}, lambda: list(images(3, [0, 1]))),
        ({"normalize": ocar.Normalize()}, lambda: list(vectors(3, [0, 1]))),
        ({"standardize": False}, lambda: list(vectors(3, [0, 1]))),
    ],
    ids=["uint8", "normalize", "off"],
)
def test_other_inputs_are_left_alone(settings: dict[str, object], make) -> None:
    if "normalize" in settings:
        settings = {"normalize": lambda x: x / 2}
    stream = make()
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(stream[0][0][0].numel(), 4)))
    learner = learner_of("er", model, **settings)
    for x, y in stream:
        learner.learn(x, y)
    x = stream[0][0]
    expected = x / 255 if x.dtype == torch.uint8 else x / 2 if "normalize" in settings else x
    assert torch.equal(seen_by(learner, model, x), expected)
    assert not any(name.startswith("standardize.") for name in learner.state()[0])


def test_a_model_that_looks_numbers_up_is_given_them_as_they_are() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table(x.long()).mean(1))

    model = seeded(Tokens)
    learner = learner_of("er", model)
    x, y = torch.arange(20.0).view(5, 4) % 5, torch.arange(5) % 3
    learner.learn(x, y)
    assert torch.equal(seen_by(learner, model, x), x)


def test_uint8_is_standardised_if_one_asks_for_it() -> None:
    ((x, y),) = images(1, [0, 1])
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))
    learner = learner_of("er", model, standardize=True)
    learner.learn(x, y)
    given = seen_by(learner, model, x)
    assert_close(given.mean(), torch.tensor(0.0), rtol=0, atol=1e-5)
    assert_close(given.std(correction=0), torch.tensor(1.0), rtol=1e-5, atol=0)
    with pytest.raises(ConfigError, match="Must be None or False if normalize is given"):
        learner_of("er", mlp(), standardize=True, normalize=ocar.Normalize())


# Scale does not matter


@pytest.mark.parametrize("scale", [100.0, 0.01])
@pytest.mark.parametrize("method", METHODS)
def test_the_scale_of_features_does_not_matter(method: str, scale: float) -> None:
    """On the digits of scikit-learn as features; without standardising it does."""
    x, y = load_digits(return_X_y=True)
    x, y, test = x[:600], y[:600], torch.tensor(x[600:800])
    answers = {}
    for settings in ({}, RAW):
        for factor in (1.0, scale):
            learner = learner_of(method, network(64, 10), **settings)
            for own, labels in batches(factor * x, y):
                learner.learn(own, labels)
            order = torch.tensor(learner.classes).argsort()
            answers[factor, bool(settings)] = learner.predict(factor * test)[:, order]
    assert_close(answers[scale, False], answers[1.0, False], rtol=1e-4, atol=1e-4)
    assert (answers[scale, True] - answers[1.0, True]).abs().max() > 0.1


@pytest.mark.parametrize("method", METHODS)
def test_the_scale_of_targets_does_not_matter(method: str) -> None:
    """On scikit-learn's diabetes, by every way to a prediction; the guess of the mean is worse."""
    x, y = load_diabetes(return_X_y=True)
    y = y[:, None]
    answers = {}
    for factor in (1.0, 1000.0):
        learner = learner_of(method, network(10, 1), **REGRESSION)
        repeated, serving = learner.predict_repeatedly(torch.tensor(x)), Serving(learner)
        for own, targets in batches(x, factor * y):
            learner.learn(own, targets)
        found = learner.predict(torch.tensor(x))
        assert_close(repeated(len(x), lambda outputs: outputs), found)
        assert_close(serving.predict(torch.tensor(x)).logits, found)
        answers[factor] = found / factor
    assert_close(answers[1000.0], answers[1.0], rtol=1e-6, atol=1e-6)
    assert np.square(answers[1.0].numpy() - y).mean() < 0.7 * y.var()


def test_a_memory_policy_sees_the_units_of_the_targets() -> None:
    offered = []

    class Watching(ocar.ReservoirMemory):
        uses = ("outputs", "loss")

        def place(self, offer):
            offered.append(offer)
            return super().place(offer)

    learner = ocar.ER(mlp(2), lr=0.05, likelihood="gaussian", memory=Watching(20))
    for x, y in mixed_regression():
        learner.learn(x, y)
        offer = offered[-1]
        assert torch.equal(offer.y, y)
        assert_close(offer.known["outputs"], learner.predict(x), rtol=1e-5, atol=1e-2)
        std = learner.intake.targets.values[3].float()
        expected = ((learner.predict(x) - y) / std).square().sum(1) / 2
        assert_close(offer.known["loss"], expected, rtol=1e-3, atol=1e-4)


# Undone, saved, loaded


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
@pytest.mark.parametrize("waits", [True, False], ids=["known", "a value"])
def test_a_batch_that_is_refused_leaves_no_trace(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of("er", mlp(2), **REGRESSION)
    if not waits:
        never_wait(monkeypatch)
    stream = list(mixed_regression())
    for x, y in stream[:3]:
        learner.learn(x, y)
    before = {name: tensor.clone() for name, tensor in learner.intake.statistics().items()}
    assert set(before) == {"inputs", "targets"}
    for call in (learner.learn, learner.remember):
        call(1e12 * stream[3][0], stream[3][1])
        assert_same(learner.intake.statistics(), before)
    learner.learn(*stream[3])
    assert not torch.equal(learner.intake.statistics()["inputs"], before["inputs"])


def test_an_error_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = list(mixed_regression())
    for learned in (0, 2):
        learner = learner_of("er", mlp(2), **REGRESSION)
        for x, y in stream[:learned]:
            learner.learn(x, y)
        before = everything(learner)

        def fail(*args: object, **kwargs: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(learner._steps, "take", fail)
            with pytest.raises(KeyboardInterrupt):
                learner.learn(*stream[3])
        assert_same(everything(learner), before)


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_learner_goes_on_to_the_bit(method: str, tmp_path: Path) -> None:
    learner = learner_of(method, mlp(2), **REGRESSION)
    stream = list(mixed_regression())
    for x, y in stream[:3]:
        learner.learn(x, y)
    assert_resumes(learner, stream[3:], mlp(2), tmp_path)


def test_the_state_of_another_standardisation_is_refused() -> None:
    learner = learner_of("er", mlp(2), **REGRESSION, **RAW)
    stream = list(mixed_regression())
    learner.learn(*stream[0])
    tensors, values = learner.state()
    other = learner_of("er", mlp(2), **REGRESSION)
    with pytest.raises(CheckpointError, match=r"no mean .* inputs.* with standardize=False"):
        other.load_state(tensors, values)
    other.learn(*stream[0])
    tensors, values = other.state()
    tensors["standardize.targets"] = tensors["standardize.targets"][:, :1]
    with pytest.raises(CheckpointError, match=r"of other targets: .* Must be float64 of shape"):
        other.load_state(tensors, values)


def test_the_guard_sees_inputs_as_they_are() -> None:
    """A standardised batch is never large; a raw one is."""
    learner = learner_of("er", mlp(), guard=Guard(scale=10.0))
    ((x, y),) = vectors(1, [0, 1])
    learner.learn(x, y)
    with pytest.warns(ocar.guard.GuardWarning, match="1 skipped for being out of scale"):
        learner.learn(1e4 * x, y)
