"""OCAR against the formula of the paper, computed by hand with the full Fisher."""

from __future__ import annotations

import copy
import inspect
from dataclasses import MISSING, fields

import pytest
import torch
from tolerances import EXACT
from torch import nn
from torch.testing import assert_close
from toys import (
    RAW,
    assert_same,
    convnet,
    everything,
    flat_gradient,
    images,
    mlp,
    never_wait,
    vectors,
)
from twins import masked_and_grown

import ocar
from ocar.errors import ConfigError
from ocar.guard import Guard
from ocar.methods.er import ERSettings
from ocar.methods.ocar import OCARSettings

SETTINGS = {"lr": 0.05, "tau_step": 1e-3, "ema": 0.2}


def fisher_by_hand(model, x, weights, units: int) -> torch.Tensor:
    """1/n Σᵢ wᵢ Σ_k p_k ∇log p_k ∇log p_kᵀ, one backward pass a sample and class."""
    total = 0
    for sample, weight in zip(x, weights, strict=True):
        log_p = model(sample[None])[0, :units].log_softmax(0)
        for k in range(units):
            score = flat_gradient(model, log_p[k])
            total = total + weight * log_p[k].exp().detach() * torch.outer(score, score)
    return total / len(x)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("share", [None, 0.7])
@pytest.mark.parametrize(
    ("option", "weight_of"),
    [
        ("ratio", lambda known, new: known / new),
        ("lambda", lambda known, new: max(1.0, known / new)),
        ("one-plus-lambda", lambda known, new: 1 + max(1.0, known / new)),
    ],
)
def test_a_step_is_the_damped_natural_gradient_of_the_joint_batch(option, weight_of, share) -> None:
    model = mlp(units=4)
    learner = ocar.OCAR(
        model,
        memory=10,
        passes=1,
        n_new=2,
        curvature="dense",
        fisher="exact",
        replay_weight=option,
        new_share=share,
        **RAW,
        **SETTINGS,
    )
    (old_x, old_y), *_ = vectors(1, [0, 1], size=5)
    (new_x, new_y), *_ = vectors(1, [2], seed=1, size=4)
    new_y[0] = 0
    old_x, new_x = old_x.double(), new_x.double()
    learner.remember(old_x, old_y)
    before = copy.deepcopy(model)
    replayed = learner.memory.gather(torch.arange(5))  # all five, in whatever order
    learner.learn(new_x, new_y)

    seen = list(dict.fromkeys([*old_y.tolist(), *new_y.tolist()]))
    units = torch.tensor([seen.index(label) for label in new_y.tolist()])
    x = torch.cat([new_x, replayed.x])
    y = torch.cat([units, replayed.y])
    counts = torch.ones(9)
    if share is not None:
        counts[:4], counts[4:] = share * 9 / 4, (1 - share) * 9 / 5
    w = counts.clone()
    w[4:] *= weight_of(len(seen), 2)
    fisher = fisher_by_hand(before, x, w, len(seen))
    losses = nn.functional.cross_entropy(before(x)[:, : len(seen)], y, reduction="none")
    loss = (counts * losses).mean()
    damped = fisher + SETTINGS["lr"] * torch.eye(len(fisher))  # τ starts at α
    step = -SETTINGS["lr"] * torch.linalg.solve(damped, flat_gradient(before, loss))
    moved = nn.utils.parameters_to_vector(model.parameters()) - nn.utils.parameters_to_vector(
        before.parameters()
    )
    assert_close(moved, step, **EXACT)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("method", ["er", "ocar", "ocar-slow"])
def test_a_share_that_is_that_of_the_numbers_changes_nothing(method) -> None:
    """Ten new samples and ten replayed ones."""
    options = {} if method == "er" else {"fisher": "exact"}
    learners = [
        ocar.make_learner(method, mlp(), lr=0.05, replay_batch=10, new_share=share, **options)
        for share in (None, 0.5)
    ]
    for x, y in vectors(5, [0, 1, 2]):
        one, other = (learner.learn(x.double(), y) for learner in learners)
        assert_close(one.loss, other.loss, **EXACT)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("curvature", ["kfac", "dense"])
def test_with_a_huge_damping_it_is_sgd_with_rate_alpha_over_tau(curvature) -> None:
    tau = 1e15  # A and G are damped by its root
    plain, curved = mlp(), mlp()
    er = ocar.ER(plain, lr=0.3, passes=2)
    ours = ocar.OCAR(
        curved, lr=0.3 * tau, tau=tau, tau_step=0.0, ema=0.5, curvature=curvature, passes=2
    )
    for x, y in vectors(4, [0, 1, 2]):
        er.learn(x.double(), y)
        ours.learn(x.double(), y)
    assert_close(
        nn.utils.parameters_to_vector(curved.parameters()),
        nn.utils.parameters_to_vector(plain.parameters()),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kind", ["factored", "exact"])
@pytest.mark.parametrize("weighting", ["gradients", "both"])
def test_a_masked_head_learns_as_one_that_really_grows(kind, weighting) -> None:
    """Twelve spare units give the same weights as a head with no unit to spare."""
    options = {"fisher": "exact", "damping_kind": kind, "weighting": weighting, "memory": 20}
    masked_and_grown(
        lambda model: ocar.OCAR(model, **SETTINGS, **options),
        [[0, 1]] * 4 + [[2, 3]] * 4 + [[4]] * 2,
    )


def test_tau_grows_with_every_gradient_step() -> None:
    learner = ocar.OCAR(mlp(), passes=3, **SETTINGS)
    taus = [learner.learn(x, y).values["tau"] for x, y in vectors(3, [0, 1])]
    assert taus == pytest.approx([0.05 + 3e-3, 0.05 + 6e-3, 0.05 + 9e-3])


def test_the_weight_of_replay_follows_classes_or_time() -> None:
    by_class = ocar.OCAR(mlp(), n_new=2, **SETTINGS)
    by_time = ocar.OCAR(mlp(), increments="domains", passes=3, **SETTINGS)
    weights = []
    for labels in ([0, 1], [2, 3], [4, 5]):
        for x, y in vectors(3, labels):
            weights.append(by_class.learn(x, y).values["replay_weight"])
            last = by_time.learn(x, y).values["replay_weight"]
    assert weights[2] == 1.0
    assert weights[5] == 2.0
    assert weights[8] == 3.0
    assert last == pytest.approx(1 + 1e-3 * 3 * 8)  # λ when the ninth batch began


def test_classes_of_the_stretch_are_counted_in_a_window() -> None:
    learner = ocar.OCAR(mlp(), window=3, **SETTINGS)
    for labels, expected in (([0, 1, 2], 3), ([3, 4], 2)):
        for x, y in vectors(3, labels, size=20):
            learner.learn(x, y)
        assert learner.transform.n_new == expected


@pytest.mark.parametrize("passes", ["first", "every"])
def test_how_often_the_curvature_is_renewed(passes, monkeypatch) -> None:
    learner = ocar.OCAR(mlp(), passes=3, fisher_passes=passes, **SETTINGS)
    counts = {"estimate": 0, "renew": 0, "apply_": 0}
    curvature = learner.transform.curvature

    def counting(name: str):
        call = getattr(curvature, name)

        def counted(*given, **options) -> None:
            counts[name] += 1
            call(*given, **options)

        return counted

    for name in counts:
        monkeypatch.setattr(curvature, name, counting(name))
    for x, y in vectors(2, [0, 1]):
        learner.learn(x, y)
    renewed = 2 if passes == "first" else 6
    assert counts == {"estimate": renewed, "renew": renewed, "apply_": 6}


@pytest.mark.parametrize(("forward", "calls"), [("shared", 3), ("own", 4)])
def test_the_fisher_shares_the_forward_pass_of_the_loss(forward, calls) -> None:
    """BatchNorm counts the forward passes in train mode."""
    model = convnet()
    learner = ocar.OCAR(model, passes=3, fisher_forward=forward, **SETTINGS)
    for x, y in images(2, [0, 1]):
        learner.learn(x, y)
    assert int(model[1].num_batches_tracked) == 2 * calls


def test_every_argument_is_a_setting_with_the_same_default() -> None:
    for function, classes in ((ocar.OCAR, (ERSettings, OCARSettings)), (ocar.ER, (ERSettings,))):
        parameters = dict(inspect.signature(function).parameters)
        parameters.pop("model")
        expected = {f.name: f.default for cls in classes for f in fields(cls)}
        expected |= {"record": True, "guard": Guard(), "ranks": None}
        given = {
            name: MISSING if p.default is inspect.Parameter.empty else p.default
            for name, p in parameters.items()
        }
        assert given == expected


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lr": 0.0}, r"Invalid lr=0\.0\. Must be larger than 0\."),
        ({"lr": float("nan")}, r"Invalid lr=nan\. Must be larger than 0\."),
        ({"ema": 1.5}, r"Invalid ema=1\.5\. Must be in \(0, 1\], or None\."),
        ({"divergence": 0.0}, r"Invalid divergence=0\.0\. Must be larger than 0\."),
        ({"tau_step": -1e-9}, r"Invalid tau_step=-1e-09\. Must be at least 0\."),
        ({"tau": 0.0}, r"Invalid tau=0\.0\. Must be larger than 0, or None"),
        ({"n_new": 0}, r"Invalid n_new=0\. Must be at least 1, or None to estimate it\."),
        ({"passes": 0}, r"Invalid passes=0\. Must be at least 1\."),
        ({"new_share": 1.0}, r"Invalid new_share=1\.0\. Must be between 0 and 1, or None\."),
        ({"memory": 0}, r"Invalid memory=0\. Must be at least 1, or a memory\."),
        ({"fisher": "sketch"}, r"Invalid fisher='sketch'\. Must be one of 'exact'"),
        ({"replay": "old"}, r"Invalid replay='old'\. Must be one of 'fresh', 'kept', 'disjoint'\."),
        ({"classes": (1, 1)}, r"Invalid classes=\(1, 1\)\. Must be distinct labels"),
        ({"classes": 10}, r"Invalid classes=10\. Must be distinct labels .* such as range\(10\)"),
        ({"closed_form_head": 1}, r"Invalid closed_form_head=1\. Must be True or False or None\."),
        ({"slow_rate": None}, r"Invalid slow_rate=None\. Must be a number\."),
        ({"tau_step": "0"}, r"Invalid tau_step='0'\. Must be a number\."),
        ({"passes": 2.0}, r"Invalid passes=2\.0\. Must be a whole number\."),
        ({"passes": True}, r"Invalid passes=True\. Must be a whole number\."),
        ({"memory": True}, r"Invalid memory=True\. Must be a whole number or Memory\."),
        ({"lr": True}, r"Invalid lr=True\. Must be a number or None\."),
        ({"record": "no"}, r"Invalid record='no'\. Must be True or False\."),
        ({"memory": "10"}, r"Invalid memory='10'\. Must be a whole number or Memory\."),
        ({"distill_curvature": "no"}, r"Invalid distill_curvature='no'\. Must be True or False\."),
        ({"augment": "flip"}, r"Invalid augment='flip'\. Must be a function or None\."),
        ({"increments": "domains", "replay_weight": "ratio"}, r"Invalid replay_weight='ratio'"),
        ({"likelihood": "gaussian"}, r"Invalid memory_kind='class-balanced'\. Must be 'reservoir'"),
    ],
)
def test_settings_out_of_range_are_refused_at_construction(setting, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ocar.OCAR(mlp(), **{**SETTINGS, **setting})


def test_the_authors_options_all_run_and_differ() -> None:
    """Every named option is heard: each changes what is learned."""
    changes = [
        {},
        {"replay_weight": "one-plus-lambda"},
        {"fisher": "sketched(2, independent)"},
        {"fisher": "sampled(1)"},
        {"fisher": "top(1)"},
        {"fisher": "empirical"},
        {"fisher_passes": "every"},
        {"fisher_forward": "own", "fisher": "sketched(4)"},
        {"damping_kind": "exact"},
        {"weighting": "both"},
        {"sharing": "reduce"},
        {"norm_layers": True},
        {"memory_kind": "reservoir"},
        {"replay": "kept"},
        {"tau": 1.0},
        {"prediction": "average", "average_rate": 0.5},
    ]
    predictions = []
    for change in changes:
        options = {"fisher": "exact", "memory": 8, "replay_batch": 4, "n_new": 2, **change}
        learner = ocar.OCAR(convnet(), **SETTINGS, **options)
        for labels in ([0, 1], [2, 3]):
            for x, y in images(4, labels):
                learner.learn(x, y)
        predictions.append(learner.predict(x))
    for i, one in enumerate(predictions):
        assert one.isfinite().all()
        for other in predictions[i + 1 :]:
            assert not torch.equal(one, other)


# --- the size of the head, and the scale of the factors -------------------------------------------

ARRIVALS = [[0, 1], [0, 1], [3], [2], [2, 3], [7]]
"""Labels of each batch: 3 comes before 2, and 7 before 4 to 6."""


def head_history(size: str, **options) -> list[tuple[int, int]]:
    """After each batch, the units that the head counts as, and the estimates in its G."""
    learner = ocar.OCAR(mlp(units=8), head_size=size, passes=2, **SETTINGS, **options)
    curvature, history = learner.transform.curvature, []
    for i, labels in enumerate(ARRIVALS):
        ((x, y),) = vectors(1, labels, seed=i)
        learner.learn(x, y)
        block = next(block for block in curvature.blocks if block.head is not None)
        count = block.buffer.counts[block.buffer.index(f"{block.head.name}.G")]
        history.append((int(block.head.active), int(count)))
    return history


@pytest.mark.parametrize("waits", [True, False])
def test_the_heads_curvature_starts_again_by_classes_or_by_labels(waits, monkeypatch) -> None:
    if not waits:
        never_wait(monkeypatch)
    assert head_history("classes") == [(2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (5, 1)]
    assert head_history("labels") == [(2, 1), (2, 2), (4, 1), (4, 2), (4, 3), (8, 1)]


def test_classes_that_are_given_count_by_their_labels() -> None:
    options = {"classes": tuple(range(8)), "head": "2"}
    assert [size for size, _ in head_history("labels", **options)] == [8] * len(ARRIVALS)


@pytest.mark.parametrize(
    "options", [{"head_size": "labels"}, {"factor_scale": "outputs"}], ids=["size", "scale"]
)
def test_an_option_of_the_authors_changes_steps_and_resumes(options, tmp_path) -> None:
    usual = ocar.OCAR(mlp(units=8), memory=20, **SETTINGS)
    learner = ocar.OCAR(mlp(units=8), memory=20, **options, **SETTINGS)
    resumed = None
    for i, labels in enumerate(ARRIVALS):
        ((x, y),) = vectors(1, labels, seed=i)
        usual.learn(x, y)
        learner.learn(x, y)
        if resumed is not None:
            resumed.learn(x, y)
        if i == 1:
            same = zip(usual.model.parameters(), learner.model.parameters(), strict=True)
            assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in same)
        if i == 2:
            learner.save(tmp_path / "learner.pt")
            resumed = ocar.load(tmp_path / "learner.pt", mlp(units=8))
    assert_same(everything(learner), everything(resumed))
    moved = [own.model[2].weight.detach() for own in (usual, learner)]
    assert float((moved[0] - moved[1]).abs().max()) > 1e-4


def test_a_wrong_size_of_the_head_is_refused() -> None:
    with pytest.raises(ConfigError, match="Invalid head_size='outputs'"):
        OCARSettings(head_size="outputs")
