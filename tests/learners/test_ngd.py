"""NGD against the damped natural gradient, written out with the full Fisher."""

from __future__ import annotations

import copy
from dataclasses import fields

import pytest
import torch
from tolerances import EXACT
from torch import nn
from torch.testing import assert_close
from toys import RAW, mlp, seeded, vectors, weights

import ocar
from ocar.errors import ConfigError
from ocar.learner import Learner
from ocar.methods.er import ERSettings
from ocar.methods.ngd import NGDSettings
from ocar.methods.ocar import OCARSettings

SETTINGS = {"lr": 0.05, "damping": 0.02, "ema": 0.3, "memory": 40}
REGRESSION = {"likelihood": "gaussian", "memory_kind": "reservoir", "passes": 1}


def test_a_regression_takes_the_damped_natural_gradient_step() -> None:
    """F̄ is the average of 1/n Σ x̃x̃ᵀ over the joint batches, x̃ = (x, 1), each sample alike."""
    model = seeded(lambda: nn.Linear(6, 1)).double()
    learner = ocar.make_learner(
        "ngd", model, curvature="dense", fisher="exact", **(SETTINGS | REGRESSION | RAW)
    )
    seen = []
    model.register_forward_pre_hook(
        lambda module, args: seen.append(args[0]) if torch.is_grad_enabled() else None
    )
    truth = torch.arange(6.0).double()
    average = None
    for x, _ in vectors(5, [0, 1, 2]):
        before = copy.deepcopy(model)
        learner.learn(x.double(), x.double() @ truth[:, None])
        joint = nn.functional.pad(seen.pop(), (0, 1), value=1.0)
        assert len(joint) == (10 if average is None else 20)
        fisher = joint.T @ joint / len(joint)
        average = fisher if average is None else 0.7 * average + 0.3 * fisher
        residual = joint @ weights(before) - joint[:, :6] @ truth
        gradient = joint.T @ residual / len(joint)
        damped = average + 0.02 * torch.eye(7).double()
        step = -0.05 * torch.linalg.solve(damped, gradient)
        assert_close(weights(model) - weights(before), step, **EXACT)


def test_on_a_linear_model_kfac_is_the_full_fisher() -> None:
    """With one output G is 1 and A the whole Fisher."""
    dense, kfac = (seeded(lambda: nn.Linear(6, 1)).double() for _ in range(2))
    common = SETTINGS | REGRESSION
    one = ocar.make_learner("ngd", dense, curvature="dense", **common)
    other = ocar.make_learner("ngd", kfac, damping_kind="exact", **common)
    for x, _ in vectors(6, [0, 1, 2]):
        y = x.double().sum(1, keepdim=True)
        one.learn(x.double(), y)
        other.learn(x.double(), y)
    assert_close(weights(kfac), weights(dense), **EXACT)


def test_replayed_samples_weigh_as_much_as_new_ones_and_tau_stays() -> None:
    learner = ocar.make_learner("ngd", mlp(units=2), **SETTINGS)
    for labels in ([0, 1], [2, 3], [4]):
        for x, y in vectors(4, labels):
            values = learner.learn(x, y).values
            assert values == {"tau": 0.02, "replay_weight": 1.0}


@pytest.mark.parametrize("curvature", ["kfac", "dense"])
def test_it_is_ocar_as_long_as_that_has_no_more_classes_than_are_new(curvature: str) -> None:
    ours, theirs = mlp(), mlp()
    own = {"lr": 0.05, "memory": 40, "ema": 0.3, "curvature": curvature}
    natural = ocar.make_learner("ngd", ours, damping=0.02, **own)
    curved = ocar.OCAR(theirs, tau=0.02, tau_step=0.0, n_new=2, **own)
    for x, y in vectors(6, [0, 1]):
        natural.learn(x, y)
        curved.learn(x, y)
    assert torch.equal(weights(ours), weights(theirs))
    for x, y in vectors(3, [2, 3]):
        natural.learn(x, y)
        curved.learn(x, y)
    assert not torch.allclose(weights(ours), weights(theirs))


def test_with_a_huge_damping_it_is_sgd_with_rate_alpha_over_tau() -> None:
    tau = 1e15
    plain, natural = mlp().double(), mlp().double()
    er = ocar.ER(plain, lr=0.3, passes=2)
    ngd = ocar.make_learner("ngd", natural, lr=0.3 * tau, damping=tau, ema=0.5, passes=2)
    for x, y in vectors(4, [0, 1, 2]):
        er.learn(x.double(), y)
        ngd.learn(x.double(), y)
    assert_close(weights(natural), weights(plain), rtol=1e-6, atol=1e-6)


def test_every_shared_setting_reaches_the_curvature() -> None:
    """Each setting that OCAR has too is passed on under its name, with OCAR's default."""
    theirs = {f.name: f.default for f in fields(OCARSettings)}
    shared = [f for f in fields(NGDSettings) if f.name in theirs and f.name != "ema"]
    assert len(shared) == 12
    for field in shared:
        assert field.default == theirs[field.name]
    other = {
        "curvature": "dense",
        "fisher": "sampled(2)",
        "fisher_passes": "every",
        "fisher_forward": "own",
        "damping_kind": "exact",
        "sharing": "reduce",
        "norm_layers": True,
        "track_norms": True,
        "max_cost": 0.5,
        "exclude": ("0",),
        "include": ("Linear",),
    }
    given = NGDSettings(damping=0.1, ema=0.7, **other).as_ocar()
    for name, value in {**other, "ema": 0.7, "tau": 0.1, "tau_step": 0.0}.items():
        assert getattr(given, name) == value


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"damping": 0.0}, r"Invalid damping=0\.0\. Must be larger than 0\."),
        ({"ema": 0.0}, r"Invalid ema=0\.0\. Must be in \(0, 1\]\."),
        ({"fisher": "all"}, r"Invalid fisher='all'"),
        (
            {"curvature": "diagonal"},
            r"Unknown curvature 'diagonal'. There are kfac, ekfac",
        ),
    ],
)
def test_settings_out_of_range_are_refused(setting, message) -> None:
    with pytest.raises(ConfigError, match=message):
        NGDSettings(**{"damping": 0.1, "ema": 0.1, **setting})


def test_it_is_a_transform_for_any_loss() -> None:
    settings = {"damping": 0.02, "ema": 0.3}
    learner = ocar.make_learner("er", mlp(), transform="ngd", lr=0.05, **settings)
    same = Learner(mlp(), ERSettings(lr=0.05), transform=NGDSettings(**settings))
    assert repr(learner) == repr(same)
