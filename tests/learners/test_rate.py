"""OCAR without settings: the learning rate that follows the predicted divergence of a step."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from toys import convnet, images, mlp, seeded, spoiled, vectors
from zoo.parts import conv, stream

import ocar
from ocar.errors import CheckpointError, ConfigError
from ocar.learner import Learner
from ocar.methods.objective import mean_loss
from ocar.methods.ocar import OCARTransform
from ocar.methods.rate import LARGEST, REGRESSION, SMALLEST, START, DivergenceRate


def rate_of(learner: Learner) -> DivergenceRate:
    assert isinstance(learner.transform, OCARTransform)
    assert learner.transform.rate is not None
    return learner.transform.rate


def test_the_predicted_divergence_is_that_of_the_step_taken() -> None:
    """½ α² gᵀ(F + τI)⁻¹g = ½ α gᵀd, with the step d that was taken and g by autograd."""
    model = mlp().double()
    learner = ocar.OCAR(model, passes=1, curvature="dense", fisher="exact", standardize=False)
    before = copy.deepcopy(model)
    x, y = next(vectors(1, [0, 1, 2, 3]))
    report = learner.learn(x.double(), y)
    units = torch.tensor([learner.classes.index(label) for label in y.tolist()])
    assert learner.head is not None
    mean_loss(before(x.double()), units, learner.head.active).backward()
    pairs = zip(before.parameters(), model.parameters(), strict=True)
    product = sum(float((old.grad * (old.detach() - new.detach())).sum()) for old, new in pairs)
    rate = float(report.values["lr"])
    assert rate == pytest.approx(START)
    assert float(report.values["divergence"]) == pytest.approx(rate * product / 2, rel=1e-9)
    assert float(report.values["tau"]) == pytest.approx(rate)


@pytest.mark.parametrize("curvature", ["kfac", "ekfac", "foof"])
def test_every_kind_of_curvature_learns_without_settings(curvature: str) -> None:
    """Images have positive inputs, whose correlations the first steps must see."""
    model = seeded(lambda: conv(nn.ReLU(), nn.Conv2d(8, 8, 3), area=16))
    learner = ocar.OCAR(model, curvature=curvature, memory=100)
    for x, y in stream("images", 40):
        learner.learn(x, y)
    x, y = list(stream("images", 3, seed=1))[-1]
    found = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
    assert torch.equal(found, y)
    assert learner.guarded.total == 0


def follow(rate: DivergenceRate, product: float, *, batch: int = 1) -> float:
    """One batch whose gradient has gᵀ(F + τI)⁻¹g = product; returns the rate that it had."""
    fall, growth, weight = (torch.tensor(n, dtype=torch.float64) for n in rate.numbers(batch))
    rate.start_(fall, growth)
    rate.follow_(torch.tensor(product, dtype=torch.float64), weight)
    return float(rate.used)


def test_the_rate_approaches_the_one_whose_divergence_is_that_asked_for() -> None:
    rate = rate_of(ocar.OCAR(mlp(), divergence=3e-4, passes=3))
    for batch in range(1, 60):
        follow(rate, 8.0, batch=batch)
    assert float(rate.used) == pytest.approx(math.sqrt(2 * 1e-4 / 8), rel=1e-2)
    assert float(rate.predicted) == pytest.approx(1e-4, rel=2e-2)


def test_a_single_batch_counts_for_little() -> None:
    """Classes that appear have large gradients, and are to be learned at the same rate."""
    rate = rate_of(ocar.OCAR(mlp(), divergence=3e-4))
    for batch in range(1, 201):
        settled = follow(rate, 8.0, batch=batch)
    follow(rate, 8.0 * 1000, batch=201)
    after = follow(rate, 8.0, batch=202)
    assert after == pytest.approx(settled * 1000**-0.01, rel=1e-2)


@pytest.mark.parametrize("product", [0.0, float("nan"), float("inf")])
def test_a_divergence_that_says_nothing_changes_nothing(product: float) -> None:
    rate = rate_of(ocar.OCAR(mlp()))
    follow(rate, product)
    assert follow(rate, 1.0) == pytest.approx(START)


def test_the_rate_stays_within_its_bounds() -> None:
    rate = rate_of(ocar.OCAR(mlp()))
    for product, limit in ((1e30, SMALLEST), (1e-30, LARGEST)):
        follow(rate, product)
        assert follow(rate, product) == pytest.approx(limit)


def test_the_rate_falls_and_the_damping_less_as_the_stream_outgrows_the_memory() -> None:
    learner = ocar.OCAR(mlp(), memory=10)
    rate = rate_of(learner)
    assert rate.numbers(1) == (1.0, 1.0, 1.0)
    for x, y in vectors(5, [0, 1, 2, 3]):  # five times what the memory holds
        learner.learn(x, y)
    fall, growth, weight = rate.numbers(6)
    assert (fall, growth, weight) == pytest.approx((2**-1.5, 1.25, 1 / 6))
    unbounded = 1e-3 / math.exp(float(rate.mean))
    assert follow(rate, 1.0) == pytest.approx(min(unbounded, LARGEST) * fall)
    assert float(rate.damping) == pytest.approx(float(rate.used) * growth)


def test_a_report_says_why() -> None:
    learner = ocar.OCAR(mlp(), memory=10)
    for x, y in vectors(6, [0, 1, 2, 3]):
        report = learner.learn(x, y)
    assert report.why == {
        "replay_weight": "ratio: 4 classes known, 4 of them new",
        "lr": "in the mean a step changes predictions by 0.001 nats; times 0.35, as a memory "
        "of 10 represents 50 samples",
        "tau": "lr times 1.25",
    }


@pytest.mark.parametrize("kind", ["window", "exponential"])
def test_the_rate_does_not_fall_with_a_memory_that_forgets(kind: str) -> None:
    learner = ocar.OCAR(mlp(), memory=10, memory_kind=kind)
    for batch, (x, y) in enumerate(vectors(9, [0, 1, 2, 3]), start=1):
        learner.learn(x, y)
        fall, growth, _ = rate_of(learner).numbers(batch)
        assert (fall, growth) == pytest.approx((1.2**-1.5, 1.05))


def accuracy_after_reversal(kind: str) -> float:
    """Accuracy on the last batches of a stream whose labels change their meaning at two thirds."""
    learner = ocar.OCAR(mlp(units=2), memory=100, memory_kind=kind, replay_batch=40)
    right = []
    for index, (x, y) in enumerate(vectors(120, [0, 1])):
        label = y if index < 80 else 1 - y
        if index >= 110:
            said = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
            right.append((said == label).float().mean())
        learner.learn(x, label)
    return float(torch.stack(right).mean())


def test_a_memory_that_forgets_follows_a_concept_that_is_replaced() -> None:
    window, exponential, all_that_was = map(
        accuracy_after_reversal, ("window", "exponential", "reservoir")
    )
    assert min(window, exponential) > 0.95
    assert all_that_was < 0.5


def test_more_divergence_means_longer_steps() -> None:
    rates = []
    for divergence in (1e-5, 1e-3):
        learner = ocar.OCAR(mlp(), divergence=divergence)
        for x, y in vectors(30, [0, 1, 2, 3]):
            report = learner.learn(x, y)
        rates.append(float(report.values["lr"]))
    assert rates[0] < rates[1] / 2


def test_a_regression_has_a_constant_rate() -> None:
    generator = torch.Generator().manual_seed(0)
    learner = ocar.OCAR(mlp(units=1), likelihood="gaussian", memory_kind="reservoir")
    w = torch.randn(6, 1, generator=generator)
    for _ in range(60):
        x = torch.randn(10, 6, generator=generator)
        report = learner.learn(x, x @ w)
    assert report.values["lr"] == REGRESSION
    assert report.values["replay_weight"] == 1.0
    x = torch.randn(200, 6, generator=generator)
    assert float((learner.predict(x) - x @ w).square().mean()) < 0.1 * float((x @ w).var())


@pytest.mark.parametrize("make", [mlp, convnet])
def test_it_learns_classes_that_arrive_one_after_another(make) -> None:
    source = vectors if make is mlp else images
    x, y = (torch.cat(parts) for parts in zip(*source(80, [0, 1, 2, 3]), strict=True))
    order = y.argsort(stable=True)
    learner = ocar.OCAR(make())
    for rows in order.split(10):
        learner.learn(x[rows], y[rows])
    x, y = (torch.cat(parts) for parts in zip(*source(20, [0, 1, 2, 3], seed=9), strict=True))
    said = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
    assert float((said == y).float().mean()) > 0.9


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_it_resumes_to_the_bit_and_a_skipped_batch_leaves_no_trace(tmp_path: Path) -> None:
    never, learner = (ocar.OCAR(mlp()) for _ in range(2))
    batches = list(vectors(12, [0, 1, 2, 3]))
    for index, (x, y) in enumerate(batches):
        never.learn(x, y)
        learner.learn(x, y)
        if index == 4:
            with spoiled(learner):
                learner.learn(x, y)
        if index == 7:
            learner.save(tmp_path / "ckpt")
            learner = ocar.load(tmp_path / "ckpt", mlp())
    assert torch.equal(rate_of(learner).mean, rate_of(never).mean)
    for one, other in zip(learner.model.parameters(), never.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("rate", [None, torch.tensor(float("nan")), torch.ones(2)])
def test_a_checkpoint_without_a_sane_rate_is_refused(rate: torch.Tensor | None) -> None:
    learner = ocar.OCAR(mlp())
    state = learner.transform.state_dict() | {"rate": rate}
    with pytest.raises(CheckpointError, match="divergence of a step"):
        learner.transform.load_state_dict({n: t for n, t in state.items() if t is not None})


def test_a_given_rate_is_the_papers_schedule() -> None:
    learner = ocar.OCAR(mlp(), lr=0.02, tau_step=0.01, passes=2)
    assert isinstance(learner.transform, OCARTransform)
    assert learner.transform.rate is None
    (x, y), *_ = vectors(1, [0, 1])
    assert learner.learn(x, y).values["tau"] == pytest.approx(0.02 + 2 * 0.01)


def test_the_first_estimates_of_the_curvature_are_averaged_evenly() -> None:
    settings = ocar.OCAR(mlp()).transform_settings
    weights = [settings.ema_of(k) for k in (1, 2, 5, 10, 100)]
    assert weights == [1.0, 0.5, 0.2, 0.1, 0.1]
    assert replace(settings, ema=0.3).ema_of(1) == 0.3


def test_mir_needs_a_rate_for_its_virtual_step() -> None:
    with pytest.raises(ConfigError, match="needs a value for 'lr'"):
        ocar.make_learner("mir", mlp(), transform="ocar")
    ocar.make_learner("mir", mlp(), transform="ocar", virtual_lr=0.1)


@pytest.mark.parametrize("likelihood", ["gaussian", "student-t"])
def test_the_damping_of_a_regression_is_relative_to_the_information(likelihood: str) -> None:
    """One step on a linear model with three outputs, written out: M is I, or diagonal."""
    model = seeded(lambda: nn.Linear(6, 3)).double()
    settings = {"likelihood": likelihood, "memory_kind": "reservoir", "passes": 1}
    learner = ocar.OCAR(model, curvature="dense", fisher="exact", standardize=False, **settings)
    before = copy.deepcopy(model)
    x, _ = next(vectors(1, [0, 1, 2, 3]))
    x = x.double()
    learner.learn(x, x[:, :3])
    residuals = x[:, :3] - before(x).detach()
    middle, scores = torch.ones(3).double(), residuals
    if learner.context.residuals is not None:
        assert learner.context.residuals.values is not None
        variance = learner.context.residuals.values[1]
        middle = 6 / 8 / variance
        scores = 6 * residuals / (5 * variance + residuals.square())
    joint = nn.functional.pad(x, (0, 1), value=1.0)
    for unit in range(3):  # the Fisher is of blocks, one an output
        fisher = middle[unit] * joint.T @ joint / len(x)
        damped = fisher + REGRESSION * middle.sum() * torch.eye(7).double()
        step = REGRESSION * torch.linalg.solve(damped, joint.T @ scores[:, unit] / len(x))
        weights = [torch.cat([m.weight[unit], m.bias[unit : unit + 1]]) for m in (before, model)]
        torch.testing.assert_close(weights[1] - weights[0], step, rtol=1e-8, atol=1e-10)


def test_many_outputs_of_correlated_samples_do_not_diverge() -> None:
    """Windows of a random walk, eight steps of a hundred outputs: each is like its neighbours."""
    walk = torch.randn(400, generator=torch.Generator().manual_seed(0)).cumsum(0)
    model = seeded(lambda: nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 100)))
    learner = ocar.OCAR(model, likelihood="gaussian", memory_kind="reservoir")
    for start in range(0, 200, 8):
        rows = torch.stack([walk[start + i : start + i + 140] for i in range(8)])
        report = learner.learn(rows[:, :40], rows[:, 40:])
        assert float(report.loss) < 1000  # that of targets of unit variance is 50
