"""A regression with a Student-t likelihood: its loss, step, scale, guard and state."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, mlp, never_wait, seeded, vectors
from twins import assert_resumes

import ocar
from ocar.errors import CheckpointError, ConfigError
from ocar.guard import Guard, GuardWarning
from ocar.learner import Learner
from ocar.methods.student_t import LEAST_RATE, SMALLEST, ResidualScale

REGRESSION = {"likelihood": "student-t", "memory_kind": "reservoir", "memory": 40}
CPU = torch.device("cpu")


def scale_of(learner: Learner) -> Tensor:
    """σ² of each output."""
    assert learner.context.residuals is not None
    assert learner.context.residuals.values is not None
    return learner.context.residuals.values[1]


def with_variance(*values: float, degrees: float = 5.0) -> ResidualScale:
    scale = ResidualScale(degrees, CPU)
    scale.fit(len(values))
    assert scale.values is not None
    scale.values[1] = torch.tensor(values)
    return scale


@pytest.mark.parametrize("degrees", [1.5, 5.0])
def test_the_loss_is_the_log_likelihood_up_to_a_constant(degrees: float) -> None:
    scale = with_variance(0.25, 4.0, degrees=degrees)
    residuals = torch.randn(7, 2, dtype=torch.float64) * 10
    normal = torch.distributions.StudentT(degrees, 0.0, torch.tensor([0.5, 2.0]).double())
    logs = normal.log_prob(residuals) - normal.log_prob(torch.zeros(2).double())
    assert_close(scale.losses(residuals), -logs.sum(1), **EXACT)


def test_with_many_degrees_of_freedom_the_loss_is_the_squared_error() -> None:
    residuals = torch.randn(7, 2, dtype=torch.float64)
    losses = with_variance(1.0, 1.0, degrees=1e9).losses(residuals)
    assert_close(losses, residuals.square().sum(1) / 2, rtol=1e-6, atol=1e-9)


def test_the_step_is_the_damped_natural_gradient() -> None:
    """Written out for a linear model, with σ² of the batch and F̄ = M · mean x̃x̃ᵀ."""
    model = seeded(lambda: nn.Linear(6, 1)).double()
    settings = {"lr": 0.05, "damping": 0.02, "ema": 0.3, "passes": 1}
    dense = {"curvature": "dense", "fisher": "exact", "degrees_of_freedom": 3.0}
    learner = ocar.make_learner("ngd", model, **(settings | REGRESSION | RAW | dense))
    seen = []
    model.register_forward_pre_hook(
        lambda module, args: seen.append(args[0]) if torch.is_grad_enabled() else None
    )
    truth = torch.arange(6.0).double()
    average, variance = None, torch.ones(())
    for number, (x, _) in enumerate(vectors(5, [0, 1, 2])):
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        learner.learn(x.double(), x.double() @ truth[:, None])
        joint = nn.functional.pad(seen.pop(), (0, 1), value=1.0)
        residual = joint[:, :6] @ truth - joint @ before
        new = residual[: len(x)].square()
        rate = max(LEAST_RATE, 1 / (number + 2))
        variance = (1 - rate) * variance + rate * (4 * new / (3 + new / variance)).mean()
        fisher = 4 / 6 / variance * joint.T @ joint / len(joint)
        average = fisher if average is None else 0.7 * average + 0.3 * fisher
        score = 4 * residual / (3 * variance + residual.square())
        damped = average + 0.02 * torch.eye(7).double()
        step = 0.05 * torch.linalg.solve(damped, joint.T @ score / len(joint))
        after = nn.utils.parameters_to_vector(model.parameters()).detach()
        assert_close(after - before, step, **EXACT)
    assert_close(scale_of(learner), variance[None], **EXACT)


def test_an_outlier_moves_the_predictions_by_a_bounded_amount() -> None:
    moves = {}
    for likelihood in ("student-t", "gaussian"):
        learner = ocar.OCAR(mlp(1), **(REGRESSION | {"likelihood": likelihood}), standardize=False)
        for x, _ in vectors(20, [0, 1, 2]):
            learner.learn(x, x[:, :1] / 3)
        before = learner.predict(x)
        moved = []
        for size in (10.0, 1e3, 1e5):
            other = copy.deepcopy(learner)
            y = x[:, :1] / 3
            y[0] += size
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GuardWarning)
                other.learn(x, y)
            moved.append(float((other.predict(x) - before).abs().max()))
        moves[likelihood] = moved
    assert max(moves["student-t"]) < 0.5
    assert moves["student-t"][2] < 1.1 * moves["student-t"][0]
    assert moves["gaussian"][1] > 10 * moves["gaussian"][0]


def test_outliers_in_the_targets_do_little_harm() -> None:
    """One target in twenty is replaced; the error is against those that were not."""
    errors = {}
    for likelihood in ("student-t", "gaussian"):
        learner = ocar.OCAR(mlp(1), **(REGRESSION | {"likelihood": likelihood}))
        generator, found = torch.Generator().manual_seed(0), []
        for x, _ in vectors(100, [0, 1, 2]):
            clean = torch.tanh(x[:, :1])
            noise = 20 * torch.randn(clean.shape, generator=generator)
            wrong = torch.rand(clean.shape, generator=generator) < 0.05
            if learner.batches >= 50:
                found.append(float((learner.predict(x) - clean).square().mean()))
            learner.learn(x, torch.where(wrong, noise, clean))
        errors[likelihood] = sum(found) / len(found)
    assert errors["student-t"] < 0.1 * errors["gaussian"]


# --- the scale -----------------------------------------------------------------------------------


@pytest.mark.parametrize("degrees", [2.0, 5.0, 30.0])
def test_the_scale_becomes_that_of_the_residuals(degrees: float) -> None:
    torch.manual_seed(0)
    truth = torch.tensor([0.3, 2.0], dtype=torch.float64)
    scale = with_variance(1.0, 1.0, degrees=degrees)
    for _ in range(200):
        scale.follow_(torch.distributions.StudentT(degrees, 0.0, truth).sample((2000,)))
    assert scale.values is not None
    assert_close(scale.values[1].sqrt(), truth, rtol=0.05, atol=0)


def test_no_outlier_can_raise_the_scale_by_much() -> None:
    scale = with_variance(0.5)
    assert scale.values is not None
    scale.values[0] = 100
    scale.follow_(torch.tensor([[1e12]], dtype=torch.float64))
    assert float(scale.values[1]) == pytest.approx(0.5 * (1 + LEAST_RATE * 5), rel=1e-6)


def test_exact_predictions_leave_a_scale() -> None:
    scale = with_variance(1.0)
    for _ in range(300):
        scale.follow_(torch.zeros(4, 1))
    assert scale.values is not None
    assert float(scale.values[1]) == SMALLEST


# --- the guard -----------------------------------------------------------------------------------


def kl(degrees: float, distance: float) -> float:
    """KL of two Student-t distributions at a distance, by quadrature."""
    angle = (torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000 * torch.pi - torch.pi / 2
    x = torch.tan(angle)
    one = torch.distributions.StudentT(torch.tensor(degrees).double())
    width = torch.pi / len(angle) / torch.cos(angle).square()
    ratio = one.log_prob(x) - one.log_prob(x - distance)
    return float((one.log_prob(x).exp() * ratio * width).sum())


@pytest.mark.parametrize("degrees", [1.5, 5.0, 50.0])
def test_the_divergence_is_a_bound_of_the_exact_one(degrees: float) -> None:
    """Its excess is at most that of small distances, (ν + 3)/(ν + 1)."""
    scale = with_variance(4.0, degrees=degrees)
    for distance in (0.01, 1.0, 10.0, 100.0):
        before, now = torch.zeros(1, 1).double(), torch.full((1, 1), 2 * distance).double()
        bound, exact = float(scale.divergence(before, now)), kl(degrees, distance)
        assert exact * (1 - 1e-3) <= bound <= exact * (degrees + 3) / (degrees + 1) * (1 + 1e-3)


def test_a_bound_shortens_the_steps() -> None:
    for guard, shortened in ((Guard(), False), (Guard(gaussian_kl=1e-3), True)):
        learner = ocar.OCAR(mlp(1), guard=guard, **REGRESSION)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuardWarning)
            for x, _ in vectors(4, [0, 1, 2]):
                learner.learn(x, x[:, :1])
        assert (learner.guarded.shortened > 0) == shortened


def test_the_divergence_that_is_measured_is_that_of_the_likelihood() -> None:
    learner = ocar.OCAR(mlp(1), guard=Guard(gaussian_kl=1e9), passes=1, replay="kept", **REGRESSION)
    batches = list(vectors(3, [0, 1, 2]))
    for x, _ in batches[:2]:
        learner.learn(x, x[:, :1])
    asked: list[Tensor] = []
    divergence = learner.context.residuals.divergence

    def watched(before: Tensor, now: Tensor) -> Tensor:
        asked.append(divergence(before, now))
        return asked[-1]

    learner._guard._distance = watched
    learner.learn(batches[2][0], batches[2][0][:, :1])
    assert float(asked[0].mean()) <= learner.guarded.largest_kl
    assert float(asked[0].mean()) > 0


# --- state and settings --------------------------------------------------------------------------


def test_a_saved_learner_goes_on_exactly(tmp_path: Path) -> None:
    learner = ocar.OCAR(mlp(2), degrees_of_freedom=3.0, **REGRESSION)
    batches = [(x, x[:, :2]) for x, _ in vectors(8, [0, 1, 2])]
    for x, y in batches[:4]:
        learner.learn(x, y)
    loaded = assert_resumes(learner, batches[4:], mlp(2), tmp_path)
    assert loaded.settings.degrees_of_freedom == 3.0
    assert torch.equal(scale_of(learner), scale_of(loaded))


def test_a_batch_is_undone_where_the_verdict_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where no step waits for a value; the scale is of the guard's snapshot."""
    never_wait(monkeypatch)
    learner = ocar.OCAR(mlp(2), **REGRESSION)
    batches = list(vectors(4, [0, 1, 2]))
    for x, _ in batches[:3]:
        learner.learn(x, x[:, :2])
    before = scale_of(learner).clone()
    learner.learn(1e6 * batches[3][0], 1e6 * batches[3][0][:, :2])
    assert torch.equal(scale_of(learner), before)
    learner.learn(batches[3][0], batches[3][0][:, :2])
    assert not torch.equal(scale_of(learner), before)


def test_a_learner_without_a_batch_is_saved_too(tmp_path: Path) -> None:
    ocar.OCAR(mlp(2), **REGRESSION).save(tmp_path / "a")
    loaded = ocar.load(tmp_path / "a", mlp(2))
    x, _ = next(vectors(1, [0, 1]))
    assert loaded.learn(x, x[:, :2]).loss.isfinite()


@pytest.mark.parametrize("bad", [torch.ones(3, 2), torch.ones(2), -torch.ones(2, 2)])
def test_scales_that_are_none_are_refused(bad: Tensor) -> None:
    with pytest.raises(CheckpointError, match=r"Must be positive, of shape \(2, outputs\)"):
        ResidualScale(5.0, CPU).load_state_dict({"residuals": bad})


def test_the_degrees_of_freedom_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"Invalid degrees_of_freedom=0\.0"):
        ocar.OCAR(mlp(1), degrees_of_freedom=0.0, **REGRESSION)
    with pytest.raises(ConfigError, match=r"'exponential' for a regression"):
        ocar.OCAR(mlp(1), likelihood="student-t")
