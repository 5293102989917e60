"""EWC against its penalty, written out with Fishers computed sample by sample."""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, convnet, flat_gradient, images, mlp, seeded, vectors, weights
from twins import masked_and_grown

import ocar
from ocar.errors import CheckpointError, ConfigError, ModelError
from ocar.learner import Learner
from ocar.methods.ewc import EWCSettings

ALPHA, STRENGTH, EMA = 0.01, 2.0, 0.3


def make(model: nn.Module, **settings) -> Learner:
    given = {
        "lr": ALPHA,
        "strength": STRENGTH,
        "ema": EMA,
        "memory": 40,
        "fisher": "exact",
        **RAW,
        **settings,
    }
    return ocar.make_learner("ewc", model, **given)


def linear() -> nn.Module:
    return seeded(lambda: nn.Linear(6, 1)).double()


def regression(model: nn.Module, **settings) -> Learner:
    own = {"likelihood": "gaussian", "memory_kind": "reservoir", "passes": 1}
    return make(model, **(own | settings))


def inputs_seen(model: nn.Module) -> list[Tensor]:
    """What goes through the model in training, with 1 for the bias."""
    seen: list[Tensor] = []
    model.register_forward_pre_hook(
        lambda module, args: (
            seen.append(nn.functional.pad(args[0], (0, 1), value=1.0))
            if torch.is_grad_enabled()
            else None
        )
    )
    return seen


TRUTH = torch.tensor([1.0, -1.0, 0.5, 0.0, 2.0, 1.0]).double()


@pytest.mark.parametrize("structure", ["diagonal", "full"])
@pytest.mark.parametrize("samples", ["replayed", "joint"])
@pytest.mark.parametrize("penalty", ["explicit", "implicit"])
@pytest.mark.parametrize("every", [1, 3])
def test_a_regression_takes_the_penalised_step(structure, samples, penalty, every) -> None:
    """F = 1/n Σ x̃x̃ᵀ of replayed samples or of all; w* from one step ago, or from several."""
    model = linear()
    learner = regression(
        model, structure=structure, fisher_samples=samples, penalty=penalty, anchor_every=every
    )
    seen = inputs_seen(model)
    w = anchor = weights(model)
    average = torch.zeros(7, 7).double()
    first = True
    for t, (x, _) in enumerate(vectors(8, [0, 1, 2])):
        learner.learn(x.double(), x.double() @ TRUTH[:, None])
        joint = seen.pop()
        used = joint[10:] if samples == "replayed" else joint
        if len(used):
            fisher = used.T @ used / len(used)
            if structure == "diagonal":
                fisher = fisher.diag().diag()
            average = fisher if first else (1 - EMA) * average + EMA * fisher
            first = False
        gradient = joint.T @ (joint @ w - joint[:, :6] @ TRUTH) / len(joint)
        if penalty == "implicit":
            anchor = w if t % every == 0 else anchor
        gradient = gradient + STRENGTH * average @ (w - anchor)
        if penalty == "implicit":
            damped = torch.eye(7).double() + ALPHA * STRENGTH * average
            gradient = torch.linalg.solve(damped, gradient)
        else:
            anchor = w if t % every == 0 else anchor
        w = w - ALPHA * gradient
        assert_close(weights(model), w, **EXACT)
        assert_close(learner.transform.anchor, anchor, **EXACT)


class Distances(nn.Module):
    """Distances by ``torch.cdist``, whose batched backward pass is wrong, or written out."""

    def __init__(self, *, written_out: bool) -> None:
        super().__init__()
        self.body, self.head, self.written_out = nn.Linear(6, 4), nn.Linear(3, 4), written_out
        self.centres = nn.Buffer(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        if self.written_out:
            return self.head((hidden[:, None] - self.centres).square().sum(-1).sqrt())
        return self.head(torch.cdist(hidden, self.centres))


@pytest.mark.filterwarnings("ignore:The backward pass of this model cannot be batched")
def test_the_fisher_is_right_where_the_backward_pass_cannot_be_batched() -> None:
    models = [seeded(lambda own=own: Distances(written_out=own)).double() for own in (True, False)]
    for model in models:
        learner = make(model)
        for x, y in vectors(4, [0, 1, 2]):
            learner.learn(x.double(), y)
    assert_close(*map(weights, models), **EXACT)


def test_the_implicit_step_minimises_what_it_says() -> None:
    """⟨∇L, Δ⟩ + ‖Δ‖²/2α + λ/2 ΔᵀF̄Δ is smallest at the step, w* being where it starts."""
    model = linear()
    learner = regression(model, structure="full", penalty="implicit")
    seen = inputs_seen(model)
    for x, _ in vectors(4, [0, 1]):
        start = weights(model)
        learner.learn(x.double(), x.double() @ TRUTH[:, None])
    joint = seen.pop()
    gradient = joint.T @ (joint @ start - joint[:, :6] @ TRUTH) / 20
    delta = (weights(model) - start).requires_grad_()
    held = STRENGTH * delta @ learner.transform.average @ delta
    (slope,) = torch.autograd.grad(gradient @ delta + (delta @ delta / ALPHA + held) / 2, delta)
    assert slope.abs().max() < 1e-11


def fisher_by_hand(model: nn.Module, x: Tensor, units: int, first: int = 0) -> Tensor:
    """1/m Σᵢ Σ_k p_k ∇log p_k ∇log p_kᵀ from sample ``first`` on, all in one forward pass."""
    log_p = model(x)[:, :units].log_softmax(1)
    total = 0
    for sample in log_p[first:]:
        for k in range(units):
            score = flat_gradient(model, sample[k])
            total = total + sample[k].exp().detach() * torch.outer(score, score)
    return total / (len(x) - first)


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_a_classification_takes_the_penalised_step(structure: str) -> None:
    model = mlp(units=4).double()
    learner = make(model, structure=structure, passes=1, replay_batch=5)
    ((old, y),) = vectors(1, [0, 1, 2], size=5)
    learner.remember(old.double(), y)
    held = learner.memory.gather(torch.arange(5))
    units = {label: unit for unit, label in enumerate(learner.classes)}
    learner.memory.add = lambda *args, **kwargs: None  # the same five are replayed each time
    previous, average, known = weights(model), None, len(units)
    for x, y in vectors(4, sorted(units), size=6):
        before = copy.deepcopy(model)
        learner.learn(x.double(), y)
        fisher = fisher_by_hand(before, held.x, known)
        if structure == "diagonal":
            fisher = fisher.diag().diag()
        average = fisher if average is None else (1 - EMA) * average + EMA * fisher
        joint = torch.cat([x.double(), held.x])
        target = torch.cat([torch.tensor([units[label] for label in y.tolist()]), held.y])
        loss = nn.functional.cross_entropy(before(joint)[:, :known], target)
        now = weights(before)
        gradient = flat_gradient(before, loss) + STRENGTH * average @ (now - previous)
        assert_close(weights(model), now - ALPHA * gradient, **EXACT)
        previous = now


def test_through_batchnorm_each_sample_has_a_score_of_its_own() -> None:
    """In train mode the score of one sample goes through the statistics of all."""
    model = convnet(units=3).double()
    learner = make(model, structure="full", passes=1, replay_batch=4)
    ((x, y),) = images(1, [0, 1, 2], size=4)
    learner.remember(x, y)
    held = learner.memory.gather(torch.arange(4))
    before, seen = copy.deepcopy(model), []
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    ((x, _),) = images(1, [0], size=5)
    learner.learn(x, torch.tensor([learner.classes[0]] * 5))
    joint = next(t for t in seen if len(t) == 9)
    assert len(held) == 4
    expected = fisher_by_hand(before, joint, len(learner.classes), first=5)
    assert_close(learner.transform.average, expected, **EXACT)


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_without_strength_it_is_er(structure: str) -> None:
    plain, penalised = mlp(units=2), mlp(units=2)
    er = ocar.ER(plain, lr=ALPHA, memory=40, **RAW)
    ewc = make(penalised, strength=0.0, structure=structure)
    for labels in ([0, 1], [2, 3]):
        for x, y in vectors(3, labels):
            er.learn(x, y)
            ewc.learn(x, y)
    assert torch.equal(weights(plain), weights(penalised))


def test_the_larger_the_strength_the_less_an_implicit_step_moves() -> None:
    moves = []
    for strength in (0.0, 1.0, 100.0, 1e4):
        model = linear()
        learner = regression(model, strength=strength, structure="full", penalty="implicit")
        for x, _ in vectors(2, [0, 1, 2]):
            start = weights(model)
            learner.learn(x.double(), x.double() @ TRUTH[:, None])
        moves.append(float((weights(model) - start).norm()))
    assert moves == sorted(moves, reverse=True)


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_online_ewc_adds_up_the_mean_fisher_of_each_stretch(structure: str) -> None:
    """F̄ ← (1 − a) F̄ + mean F when w* is renewed, in the gradient from the next step on."""
    model = linear()
    learner = regression(model, structure=structure, accumulation="sum", anchor_every=3)
    seen = inputs_seen(model)
    w = anchor = weights(model)
    average, stretch = torch.zeros(7, 7).double(), []
    for t, (x, _) in enumerate(vectors(11, [0, 1, 2])):
        learner.learn(x.double(), x.double() @ TRUTH[:, None])
        joint = seen.pop()
        if t:
            fisher = joint[10:].T @ joint[10:] / 10
            stretch.append(fisher.diag().diag() if structure == "diagonal" else fisher)
        gradient = joint.T @ (joint @ w - joint[:, :6] @ TRUTH) / len(joint)
        gradient = gradient + STRENGTH * average @ (w - anchor)
        if t % 3 == 0:
            anchor = w
            if stretch:
                average = (1 - EMA) * average + torch.stack(stretch).mean(0)
            stretch = []
        w = w - ALPHA * gradient
        assert_close(weights(model), w, **EXACT)


@pytest.mark.parametrize("accumulation", ["average", "sum"])
@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_a_masked_head_learns_as_one_that_really_grows(structure, accumulation) -> None:
    options = {"structure": structure, "accumulation": accumulation, "anchor_every": 4}
    masked, _ = masked_and_grown(
        lambda model: make(model.double(), memory=20, **options),
        [[0, 1]] * 4 + [[2, 3]] * 4 + [[4]] * 2,
    )
    assert float(masked.transform.average.abs().sum()) > 0


def test_how_often_the_fisher_is_estimated(monkeypatch) -> None:
    for passes, expected in (("every", 9), ("first", 3)):
        learner = make(mlp(), fisher_passes=passes)
        estimate, calls = learner.transform._fisher, []
        monkeypatch.setattr(
            learner.transform, "_fisher", lambda *a, f=estimate, c=calls: (c.append(1), f(*a))[1]
        )
        for x, y in vectors(4, [0, 1]):  # the first batch has nothing to replay
            learner.learn(x, y)
        assert len(calls) == expected


@pytest.mark.parametrize("fisher", ["sampled(1)", "sketched(2)", "empirical", "top(1)"])
def test_it_runs_with_every_root_and_with_other_losses(fisher: str) -> None:
    settings = {"transform": "ewc", "lr": 0.05, "strength": 0.1, "fisher": fisher}
    learner = ocar.make_learner("er-ace", convnet(units=2), alpha=0.5, **settings)
    for labels in ([0], [0, 1], [2, 3, 4]):
        for x, y in images(3, labels):
            assert torch.isfinite(learner.learn(x, y).loss)
    assert learner.predict(x).shape == (10, 5)
    assert float(learner.transform.average.abs().sum()) > 0


def test_a_state_of_another_penalty_is_refused() -> None:
    learner = make(mlp())
    state = learner.transform.state_dict()
    state.pop("anchor")
    with pytest.raises(CheckpointError, match=r"another penalty: missing \['anchor'\]"):
        learner.transform.load_state_dict(state)


def test_a_frozen_layer_is_not_penalised() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    learner = make(model)
    for x, y in vectors(3, [0, 1]):
        learner.learn(x, y)
    assert torch.equal(model[0].weight, before)
    assert learner.transform.anchor.numel() == 8 * 4 + 4


def test_the_full_fisher_is_for_tiny_models() -> None:
    with pytest.raises(ModelError, match=r"20,200 trainable parameters; .* structure='diagonal'"):
        make(nn.Linear(100, 200), structure="full")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"strength": -1.0}, r"Invalid strength=-1\.0\. Must be at least 0\."),
        ({"ema": 0.0}, r"Invalid ema=0\.0\. Must be in \(0, 1\]\."),
        ({"anchor_every": 0}, r"Invalid anchor_every=0\. Must be at least 1\."),
        ({"structure": "kfac"}, r"Invalid structure='kfac'\. Must be one of 'diagonal', 'full'\."),
        ({"accumulation": "ewc"}, r"Invalid accumulation='ewc'"),
        ({"fisher_samples": "old"}, r"Invalid fisher_samples='old'"),
        ({"fisher_passes": "last"}, r"Invalid fisher_passes='last'"),
        ({"penalty": "both"}, r"Invalid penalty='both'"),
        ({"fisher": "all"}, r"Invalid fisher='all'"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message) -> None:
    with pytest.raises(ConfigError, match=message):
        EWCSettings(**{"strength": 1.0, **setting})
