"""MIR against a plain computation of every step with copies of the model."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, assert_same, convnet, images, mlp, recorded, vectors

import ocar
from ocar.errors import ConfigError
from ocar.methods.objective import Step

cross_entropy = nn.functional.cross_entropy


def learner_on(model: nn.Module, **settings) -> ocar.Learner:
    defaults = {"lr": 0.1, "memory": 40, "subsample": 30, "replay_batch": 5}
    return ocar.make_learner("mir", model, **{**defaults, **RAW, **settings})


def increase_by_hand(before: nn.Module, step: Step, *, lr: float, known: int) -> list[float]:
    """One candidate after the other, with a real step of SGD on a copy."""
    virtual = copy.deepcopy(before)
    n = step.new
    cross_entropy(virtual(step.x[:n])[:, :known], step.y[:n]).backward()
    torch.optim.SGD(virtual.parameters(), lr=lr).step()
    with torch.no_grad():
        return [
            float(
                cross_entropy(virtual(x[None])[:, :known], y[None])
                - cross_entropy(before(x[None])[:, :known], y[None])
            )
            for x, y in zip(step.x[n:], step.y[n:], strict=True)
        ]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("virtual_lr", [None, 0.7])
def test_what_is_replayed_has_the_largest_increase_of_the_loss(virtual_lr) -> None:
    learner = learner_on(mlp(units=2), exclude="none", virtual_lr=virtual_lr)
    steps = recorded(learner)
    checked = 0
    for labels in ([0, 1], [2, 3], [4]):  # the head doubles twice
        for x, y in vectors(4, labels):
            steps.clear()
            learner.learn(x.double(), y)
            known = len(learner.classes)
            for step, before, outcome, _ in steps:
                if not step.replayed:
                    assert learner.batches == 1
                    continue
                assert step.replayed == min(30, 10 * (learner.batches - 1))
                lr = 0.1 if virtual_lr is None else virtual_lr
                increase = torch.tensor(increase_by_hand(before, step, lr=lr, known=known))
                best = increase.argsort(descending=True)[:5]
                n, taken = step.new, outcome.step
                assert (taken.new, taken.draws) == (10, (5,))
                assert_close(taken.x[n:], step.x[n:][best], **EXACT)
                assert torch.equal(taken.y[n:], step.y[n:][best])
                assert_close(taken.raw[n:], step.raw[n:][best], **EXACT)
                assert torch.equal(taken.x[:n], step.x[:n])
                new = cross_entropy(before(step.x[:n])[:, :known], step.y[:n])
                old = cross_entropy(before(taken.x[n:])[:, :known], taken.y[n:])
                assert_close(outcome.loss, (new + old).detach(), **EXACT)
                checked += 1
    assert checked == 33


@pytest.mark.usefixtures("double")
def test_a_step_is_sgd_on_the_sum_of_the_two_means() -> None:
    model = mlp(units=4)
    learner = learner_on(model, exclude="none", passes=1)
    steps = recorded(learner)
    for x, y in vectors(3, [0, 1, 2]):
        learner.learn(x.double(), y)
    _, before, outcome, _ = steps[-1]
    taken, n = outcome.step, 10
    outputs = before(taken.x)[:, :3]
    loss = cross_entropy(outputs[:n], taken.y[:n]) + cross_entropy(outputs[n:], taken.y[n:])
    grads = torch.autograd.grad(loss, list(before.parameters()))
    for now, then, grad in zip(model.parameters(), before.parameters(), grads, strict=True):
        assert_close(now, then - 0.1 * grad, **EXACT)


@pytest.mark.usefixtures("double")
def test_with_as_many_candidates_as_replayed_nothing_is_chosen() -> None:
    """Then it is replay with the sum of two means: ER at twice the rate, halves of equal size."""
    models = [mlp(units=2) for _ in range(2)]
    er = ocar.ER(models[0], lr=0.2, memory=40, **RAW)
    mir = learner_on(models[1], exclude="none", subsample=10, replay_batch=10)
    first, *rest = vectors(8, [0, 1, 2])
    for learner in (er, mir):
        learner.remember(first[0].double(), first[1])
    for x, y in rest:
        for learner in (er, mir):
            learner.learn(x.double(), y)
    assert_close(dict(models[0].named_parameters()), dict(models[1].named_parameters()), **EXACT)


@pytest.mark.usefixtures("double")
def test_classes_of_the_batch_before_are_passed_over() -> None:
    learner = learner_on(mlp(units=8), subsample=60, memory=60)
    x, y = next(vectors(1, [7]))
    learner.remember(x.double(), y)  # never excluded, so that there is always enough
    steps = recorded(learner)
    schedule = [[0, 1], [1, 2], [2, 3], [3], [0, 4], [4, 5]]
    for i, labels in enumerate(schedule):
        steps.clear()
        x, y = next(vectors(1, labels, seed=i))
        learner.learn(x.double(), y)
        excluded = {learner.classes.index(label) for label in schedule[i - 1]} if i else set()
        for step, _, outcome, _ in steps:
            assert set(step.y[10:].tolist()) >= excluded  # they are there to be chosen
            replayed = set(outcome.step.y[10:].tolist())
            assert replayed
            assert not replayed & excluded


@pytest.mark.usefixtures("double")
def test_the_loss_leaves_out_what_is_there_for_its_shape_alone() -> None:
    """Two of the memory's samples are allowed, though five are to be replayed; then none."""
    learner = learner_on(mlp(units=8))
    x, y = next(vectors(1, [1], size=8))
    learner.learn(x.double(), y)
    (other, y_other), *_ = vectors(1, [0], size=2)
    learner.remember(other.double(), y_other)
    steps = recorded(learner)
    learner.learn(x.double(), y)
    for step, before, outcome, _ in steps:
        assert step.replayed == 10
        new = cross_entropy(before(step.x[:8])[:, :2], step.y[:8])
        both = cross_entropy(before(other.double())[:, :2], torch.tensor([1, 1]))
        assert_close(outcome.loss, (new + both).detach(), **EXACT)
    only = learner_on(mlp(units=8))
    steps = recorded(only)
    for _ in range(3):  # one class only: nothing is ever replayed
        only.learn(x.double(), y)
    for step, before, outcome, _ in steps:
        new = cross_entropy(before(step.x[:8])[:, :1], step.y[:8])
        assert_close(outcome.loss, new.detach(), **EXACT)


def norms_after(x_new: Tensor, x: Tensor, chosen: Tensor, before: nn.Module) -> Tensor:
    with torch.no_grad():
        for part in (x_new, x, chosen):
            if part is not None:
                before(part)
    return before[1].running_mean


@pytest.mark.parametrize("scoring", ["train", "eval"])
def test_scoring_in_either_mode(scoring: str) -> None:
    """The running statistics move with the candidates in train mode, and never with the copy."""
    learner = learner_on(convnet(), exclude="none", scoring=scoring, passes=1)
    steps = recorded(learner)
    for x, y in images(4, [0, 1, 2]):
        learner.learn(x, y)
    step, before, outcome, _ = steps[-1]
    virtual, n = copy.deepcopy(before), step.new
    cross_entropy(virtual(step.x[:n])[:, :3], step.y[:n]).backward()
    torch.optim.SGD(virtual.parameters(), lr=0.1).step()
    # Running statistics as they are when scoring begins: both have seen the new samples.
    model = copy.deepcopy(before)
    with torch.no_grad():
        model(step.x[:n])
        for each in (virtual, model):
            each.train(scoring == "train")
        losses = [
            cross_entropy(m(step.x[n:])[:, :3], step.y[n:], reduction="none")
            for m in (virtual, model)
        ]
        best = (losses[0] - losses[1]).topk(5).indices
    assert_close(outcome.step.x[n:], step.x[n:][best])
    candidates = step.x[n:] if scoring == "train" else None
    mean = norms_after(step.x[:n], candidates, outcome.step.x[n:], before)
    assert_close(learner.model[1].running_mean, mean)
    assert all(module.training for module in learner.model.modules())


@pytest.mark.usefixtures("double")
def test_the_curvature_is_that_of_the_samples_in_the_loss() -> None:
    options = {"tau_step": 1e-6, "ema": 0.2, "curvature": "dense", "fisher": "exact", "n_new": 1}
    learner = learner_on(mlp(units=4), exclude="none", transform="ocar", passes=1, **options)
    seen = []
    transform = learner.transform
    estimate = transform.curvature.estimate

    def watched(outputs: Tensor, **given) -> None:
        seen.append((outputs.detach(), given))
        estimate(outputs, **given)

    transform.curvature.estimate = watched
    steps = recorded(learner)
    for x, y in vectors(3, [0, 1, 2]):
        learner.learn(x.double(), y)
    _, before, outcome, _ = steps[-1]
    outputs, given = seen[-1]
    assert_close(outputs, before(outcome.step.x).detach(), **EXACT)
    assert given["weights"].tolist() == [1.0] * 10 + [3.0] * 5
    assert torch.equal(given["targets"], outcome.step.y)


def test_without_replay_it_is_fine_tuning() -> None:
    models = [mlp() for _ in range(2)]
    plain = ocar.ER(models[0], lr=0.1, replay_batch=0, **RAW)
    mir = learner_on(models[1], replay_batch=0)
    for x, y in vectors(4, [0, 1]):
        plain.learn(x, y)
        mir.learn(x, y)
    assert_same(models[0].state_dict(), models[1].state_dict())


def test_the_frozen_settings_say_what_is_drawn() -> None:
    settings = learner_on(mlp()).settings
    assert settings.draws == (30,)
    assert replace(settings, replay_batch=0).draws == (0,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subsample": 4}, r"Invalid subsample=4. Must be at least 5, the replay batch"),
        ({"exclude": "all"}, r"Invalid exclude='all'. Must be one of 'previous', 'none'"),
        ({"scoring": "off"}, r"Invalid scoring='off'. Must be one of 'train', 'eval'"),
        ({"virtual_lr": 0.0}, r"Invalid virtual_lr=0.0. Must be larger than 0"),
        (
            {"likelihood": "gaussian", "memory_kind": "reservoir"},
            r"Must be 'categorical': losses of classes are compared",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        learner_on(mlp(), **settings)
