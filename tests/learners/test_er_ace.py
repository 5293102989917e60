"""ER-ACE against its formula, sample by sample, and OCAR on its loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from tolerances import BITWISE, EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, convnet, images, mlp, vectors
from twins import masked_and_grown

import ocar
from ocar.errors import ConfigError
from ocar.methods.er_ace import AsymmetricCrossEntropy, ERACESettings
from ocar.methods.objective import Step

CURVED = {"tau_step": 1e-3, "ema": 0.2}
METHODS = {"er-ace": {"lr": 0.1}, "ocar-ace": {"lr": 0.05, **CURVED}}
BOTH = pytest.mark.parametrize("method", METHODS)

pytestmark = pytest.mark.usefixtures("double")


def batch(labels: list[int], *, seed: int = 0, size: int = 10) -> tuple[Tensor, Tensor]:
    ((x, y),) = vectors(1, labels, seed=seed, size=size)
    return x.double(), y


def make(method: str, model: nn.Module, **settings) -> ocar.Learner:
    return ocar.make_learner(method, model, **{**METHODS[method], "memory": 40, **RAW, **settings})


def joint(new: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor], *, known: int = 4) -> Step:
    """A step with the first ``known`` of the units in use."""
    (x_new, y_new), (x_old, y_old) = new, old
    x = torch.cat([x_new, x_old])
    return Step(
        x=x,
        y=torch.cat([y_new, y_old]),
        raw=x,
        new=len(x_new),
        draws=(len(x_old),),
        extras={},
        index=0,
        active=torch.arange(6) < known,
        numbers=torch.empty(0),
        own_numbers=torch.empty(0),
    )


def by_hand(model: nn.Module, step: Step, alpha: float) -> Tensor:
    """α/n Σ −log p(y | classes of the batch) + (1 − α)/m Σ −log p(y | classes seen)."""
    n, m = step.new, len(step.x) - step.new
    present = sorted(set(step.y[:n].tolist()))
    seen = [unit for unit, used in enumerate(step.active.tolist()) if used]
    total = torch.zeros(())
    for i, (x, y) in enumerate(zip(step.x, step.y.tolist(), strict=True)):
        classes, weight = (present, alpha / n) if i < n else (seen, (1 - alpha) / m)
        z = model(x[None])[0]
        loss = torch.stack([z[unit].exp() for unit in classes]).sum().log() - z[y]
        total = total + weight * loss
    return total


# --- the loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("labels", [[1], [1, 2], [0, 1, 2, 3]])
def test_the_loss_is_that_of_a_plain_loop(alpha: float, labels: list[int]) -> None:
    model = mlp(units=6)
    step = joint(batch(labels), batch([0, 1, 2, 3], seed=1, size=7))
    outcome = AsymmetricCrossEntropy(alpha)(model, step)
    assert outcome.outputs is None  # two forward passes, neither of the joint batch
    assert_close(outcome.loss, by_hand(model, step, alpha), **EXACT)
    ours = torch.autograd.grad(outcome.loss, list(model.parameters()))
    theirs = torch.autograd.grad(by_hand(model, step, alpha), list(model.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, **EXACT)


def test_new_samples_push_no_class_that_is_absent() -> None:
    """The gradient of their term is exactly zero there, and not where replay is concerned."""
    model = mlp(units=6)
    step = joint(batch([1, 3]), batch([0, 1, 2, 3], seed=1))
    head = model[2]
    for alpha, reached in ((1.0, [1, 3]), (0.0, [0, 1, 2, 3])):
        model.zero_grad()
        AsymmetricCrossEntropy(alpha)(model, step).loss.backward()
        for unit in range(6):
            moved = torch.cat([head.weight.grad[unit], head.bias.grad[unit : unit + 1]])
            if unit in reached:
                assert moved.abs().max() > 1e-4
            else:
                assert_close(moved, torch.zeros_like(moved), **BITWISE)


def test_without_replay_it_is_cross_entropy_over_the_classes_seen() -> None:
    model = mlp(units=6)
    x, y = batch([1, 2])
    step = joint((x, y), (x[:0], y[:0]))
    for alpha in (0.0, 0.3, 1.0):
        loss = AsymmetricCrossEntropy(alpha)(model, step).loss
        assert_close(loss, nn.functional.cross_entropy(model(x)[:, :4], y), **EXACT)


@pytest.mark.parametrize(("alpha", "part"), [(1.0, slice(0, 10)), (0.0, slice(10, None))])
def test_at_the_limits_of_alpha_one_term_is_left(alpha: float, part: slice) -> None:
    model = mlp(units=6)
    step = joint(batch([1, 2]), batch([0, 1, 2, 3], seed=1, size=7))
    columns = [1, 2] if alpha else [0, 1, 2, 3]
    y = torch.tensor([columns.index(unit) for unit in step.y[part].tolist()])
    expected = nn.functional.cross_entropy(model(step.x[part])[:, columns], y)
    assert_close(AsymmetricCrossEntropy(alpha)(model, step).loss, expected, **EXACT)


def follow_training(module: nn.Module, use: Callable[[Tensor], None]) -> None:
    """Give the inputs of a module to a function, but for those in eval mode that try the model."""

    def follow(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if module.training:
            use(args[0])

    module.register_forward_pre_hook(follow)


def test_each_term_has_statistics_of_its_own() -> None:
    """BatchNorm sees new and replayed samples one after the other."""
    model = convnet()
    seen: list[int] = []
    follow_training(model[1], lambda x: seen.append(len(x)))
    learner = make("er-ace", model, passes=2)
    for x, y in images(2, [0, 1]):
        learner.learn(x, y)
    assert seen == [10, 10] * 4
    assert int(model[1].num_batches_tracked) == 8


# --- the learner ---------------------------------------------------------------------------------


@BOTH
def test_the_current_batch_can_be_replayed_at_once(method: str) -> None:
    """It enters the memory first: the replay of the very first batch is the batch itself."""
    inputs: list[Tensor] = []
    learner = make(method, mlp(), passes=1)
    follow_training(learner.model, lambda x: inputs.append(x.clone()))
    x, y = batch([0, 1])
    learner.learn(x, y)
    assert len(learner.memory) == 10
    new, old, *_ = inputs  # of both terms
    assert torch.equal(new, x)
    assert_close(old.sort(0).values, x.sort(0).values, **BITWISE)


def test_a_step_descends_the_loss_by_hand() -> None:
    """With a memory that holds the batch and what was there before, all of it replayed."""
    model = mlp(units=6)
    learner = make("er-ace", model, passes=1, alpha=0.3, memory=30, replay_batch=30)
    old, new = batch([0, 1, 2]), batch([1, 3], seed=1)
    learner.remember(*old)
    before = copy.deepcopy(model)
    order = list(dict.fromkeys([*old[1].tolist(), *new[1].tolist()]))

    def units(y: Tensor) -> Tensor:
        return torch.tensor([order.index(label) for label in y.tolist()])

    replay = torch.cat([old[0], new[0]]), torch.cat([units(old[1]), units(new[1])])
    report = learner.learn(*new)
    loss = by_hand(before, joint((new[0], units(new[1])), replay), 0.3)
    assert_close(report.loss, loss.detach(), **EXACT)
    grads = torch.autograd.grad(loss, list(before.parameters()))
    for now, was, grad in zip(model.parameters(), before.parameters(), grads, strict=True):
        assert_close(now, was - 0.1 * grad, **EXACT)


def test_all_weight_on_new_samples_leaves_other_classes_of_the_head_alone() -> None:
    learner = make("er-ace", mlp(units=6), alpha=1.0)
    learner.learn(*batch([0, 1]))
    head = learner.model[2]
    before = head.weight.detach()[:2].clone()
    for seed in range(3):
        learner.learn(*batch([4, 5], seed=seed))
    assert_close(head.weight.detach()[:2], before, **BITWISE)
    assert head.weight.detach()[2:4].ne(0).all()


def test_with_a_huge_damping_ocar_ace_is_er_ace_with_rate_alpha_over_tau() -> None:
    tau = 1e15
    plain, curved = mlp(), mlp()
    ours = make("er-ace", plain, lr=0.3, passes=2, alpha=0.4)
    theirs = make("ocar-ace", curved, lr=0.3 * tau, tau=tau, tau_step=0.0, passes=2, alpha=0.4)
    for seed, labels in enumerate(([0, 1], [0, 1], [2, 3], [1, 4])):
        x, y = batch(labels, seed=seed)
        ours.learn(x, y)
        theirs.learn(x, y)
    for one, other in zip(plain.parameters(), curved.parameters(), strict=True):
        assert_close(other, one, rtol=1e-6, atol=1e-6)


def test_a_step_of_ocar_ace_by_hand() -> None:
    """(F + τI)⁻¹ of the joint batch, replay weighed, times the gradient of ER-ACE's loss."""
    model, lr, alpha = mlp(units=4), 0.05, 0.3
    exact = {"curvature": "dense", "fisher": "exact", "n_new": 2, "replay_weight": "ratio"}
    learner = make("ocar-ace", model, alpha=alpha, passes=1, memory=20, replay_batch=20, **exact)
    old, new = batch([0, 1, 2], size=6), batch([2, 3], seed=1, size=4)
    learner.remember(*old)
    before = copy.deepcopy(model)
    learner.learn(*new)

    order = list(dict.fromkeys([*old[1].tolist(), *new[1].tolist()]))
    units = [torch.tensor([order.index(label) for label in y.tolist()]) for _, y in (old, new)]
    replay = torch.cat([old[0], new[0]]), torch.cat(units)  # the batch was remembered first
    step = joint((new[0], units[1]), replay, known=len(order))
    parameters = list(before.parameters())

    def flat(loss: Tensor) -> Tensor:
        grads = torch.autograd.grad(loss, parameters, retain_graph=True)
        return torch.cat([grad.flatten() for grad in grads])

    fisher = 0
    for i, sample in enumerate(step.x):
        log_p = before(sample[None])[0, : len(order)].log_softmax(0)
        weight = 1.0 if i < 4 else len(order) / 2
        for k in range(len(order)):
            score = flat(log_p[k])
            fisher = fisher + weight * log_p[k].exp().detach() * torch.outer(score, score)
    damped = fisher / len(step.x) + lr * torch.eye(len(fisher))
    moved = -lr * torch.linalg.solve(damped, flat(by_hand(before, step, alpha)))
    vector = nn.utils.parameters_to_vector
    found = vector(model.parameters()) - vector(before.parameters())
    assert_close(found.detach(), moved, **EXACT)


@BOTH
def test_a_masked_head_learns_as_one_that_really_grows(method: str) -> None:
    settings = {"fisher": "exact"} if method == "ocar-ace" else {}
    masked_and_grown(
        lambda model: make(method, model, **settings), [[0, 1]] * 3 + [[2, 3]] * 3 + [[4]] * 2
    )


@BOTH
def test_one_class_only(method: str) -> None:
    """Among its own classes a new sample has no competitor: its term is zero."""
    learner = make(method, mlp())
    losses = [float(learner.learn(*batch([3], seed=seed)).loss) for seed in range(3)]
    assert losses == [0.0] * 3
    assert learner.predict(batch([3])[0]).shape == (10, 1)


def test_a_batch_smaller_than_the_replay_replays_what_there_is() -> None:
    sizes: list[int] = []
    learner = make("er-ace", mlp(), passes=1)
    follow_training(learner.model, lambda x: sizes.append(len(x)))
    for size in (3, 4):
        learner.learn(*batch([0, 1], size=size))
    assert sizes == [3, 3, 4, 7]
    published = make("er-ace", mlp(), passes=1, partial_replay=False)
    follow_training(published.model, lambda x: sizes.append(len(x)))
    sizes.clear()
    for size in (3, 4, 4):  # 3, 7 and 11 in the memory; replay begins with ten
        published.learn(*batch([0, 1], size=size))
    assert sizes == [3, 4, 4, 10]


def test_settings() -> None:
    assert ERACESettings(lr=0.1).alpha == 0.5
    assert ERACESettings(lr=0.1).remembers_first
    for alpha in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match=r"Invalid alpha=.*\. Must be in \[0, 1\]\."):
            ERACESettings(lr=0.1, alpha=alpha)
    with pytest.raises(ConfigError, match="Must be 'categorical': a regression has no classes"):
        ERACESettings(lr=0.1, likelihood="gaussian", memory_kind="reservoir")
    with_transform = ocar.make_learner("er-ace", mlp(), transform="ocar", lr=0.1, **CURVED)
    assert repr(with_transform) == repr(ocar.make_learner("ocar-ace", mlp(), lr=0.1, **CURVED))
