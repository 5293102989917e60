"""OCM against its loss written plainly, and its previous model."""

from __future__ import annotations

import copy

import pytest
import torch
from rotated_nets import (
    by_class,
    contrast,
    features,
    fix_views,
    losses_of,
    rows,
    small_net,
    tilt,
    tiny_images,
)
from tolerances import EXACT
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from toys import RAW, assert_same, convnet, images, mlp, recorded, vectors

import ocar
from ocar.methods.contrastive import rotations
from ocar.methods.ocm import squared_distance
from ocar.methods.registry import preset_settings


def make(model: nn.Module, **settings) -> ocar.Learner:
    return ocar.make_learner("ocm", model, **{"memory": 40, **RAW, **settings})


def spy(learner: ocar.Learner) -> list:
    """Replaces what is random, and records the steps."""
    fix_views(learner.objective)
    return recorded(learner)


def test_the_loss_of_the_first_stretch() -> None:
    model = small_net()
    learner = make(model, projection=4, temperature=0.3)
    steps = spy(learner)
    learner.remember(*tiny_images(6, [0, 1], 1))
    before, projection = copy.deepcopy(model), copy.deepcopy(learner.objective.projection)
    x, y = tiny_images(3, [0, 1], 2)
    got = learner.learn(x, y).loss
    step = steps[0][0]
    assert step.draws == (0,)  # nothing is replayed
    y = step.y
    want = contrast(before, projection, x, y, new=True)
    want = want + functional.cross_entropy(before(tilt(x))[:, :2], y)
    assert_close(got, want.detach(), **EXACT)


def test_the_loss_of_later_stretches_and_its_gradient() -> None:
    model = small_net()
    learner = make(
        model, projection=4, temperature=0.3, stretches="boundary", optimizer="sgd", lr=0.05
    )
    objective = learner.objective
    assert learner.wants_boundaries
    learner.learn(*tiny_images(5, [0, 1], 1))
    learner.learn(*tiny_images(5, [0, 1], 2))
    learner.boundary()
    previous = copy.deepcopy(model), copy.deepcopy(objective.projection)
    learner.learn(*tiny_images(5, [2], 3))  # the previous model stays behind
    steps = spy(learner)
    before, projection = copy.deepcopy(model), copy.deepcopy(objective.projection)
    got = learner.learn(*tiny_images(3, [2], 4)).loss
    ((step, *_),) = steps
    assert step.draws == (15,)  # the whole memory: less than 7 for each of 3 classes
    new, old = step.x[:3], step.x[3:]
    y_new, y_old = step.y[:3], step.y[3:]

    loss = contrast(before, projection, new, y_new, new=True)
    loss = loss + contrast(before, projection, old, y_old, new=False)
    body, head = previous
    turned = rotations(old)
    u = rows(projection(features(before, turned)))
    with torch.no_grad():
        u_previous = rows(head(features(body, turned)))
        targets = body(tilt(old))
    loss = loss + by_class(losses_of(u @ u_previous.T, itself=True), y_old, views=1)
    outputs = before(tilt(old))
    loss = loss + functional.cross_entropy(outputs[:, :3], y_old)
    loss = loss + (outputs[:, :2] - targets[:, :2]).square().mean()
    assert_close(got, loss.detach(), **EXACT)

    loss.backward()
    pairs = [*zip(model.parameters(), before.parameters(), strict=True)]
    pairs += zip(objective.projection.parameters(), projection.parameters(), strict=True)
    for moved, then in pairs:
        assert_close(moved.detach(), then.detach() - 0.05 * then.grad, rtol=1e-7, atol=1e-10)


def test_new_samples_are_not_in_the_cross_entropy_later() -> None:
    """The head's rows move as replayed samples alone say: none of them is of the new class."""
    model = small_net()
    learner = make(model, stretches="boundary", optimizer="sgd", lr=0.05)
    learner.learn(*tiny_images(5, [0, 1], 1))
    learner.boundary()
    x, _ = tiny_images(4, [0], 3)
    bias = model[3].bias.detach().clone()
    learner.learn(x, torch.full((4,), 2))
    assert model[3].bias[2] < bias[2]  # a class that nobody votes for
    assert (model[3].bias[:2] > bias[:2]).any()


def test_the_number_of_replayed_samples_grows_with_the_classes() -> None:
    options = {"memory": 200, "memory_kind": "class-balanced", "projection": 3}
    learner = make(mlp(), stretches="boundary", **options)
    steps = spy(learner)
    learner.remember(*next(vectors(1, [0, 1], size=100)))
    drawn = []
    for labels in ([0, 1], [2], [3, 4], [5, 6, 7, 8, 9]):
        for _ in range(2):
            steps.clear()
            learner.learn(*next(vectors(1, labels, size=40)))
            drawn.append(steps[-1][0].draws[0])
        learner.boundary()
    assert drawn == [0, 0, 21, 21, 35, 35, 64, 64]


@pytest.mark.parametrize("stretches", ["boundary", "labels", "batches"])
def test_the_previous_model_is_the_one_before_the_stretch(stretches: str) -> None:
    model = convnet(units=2)
    learner = make(model, stretches=stretches, stretch=5, quiet=2)
    assert learner.wants_boundaries == (stretches == "boundary")
    for x, y in images(5, [0, 1]):
        learner.learn(x, y)
    learner.boundary()
    want = copy.deepcopy(model.state_dict())
    projection = copy.deepcopy(learner.objective.projection.state_dict())
    for x, y in images(4, [2, 3, 4]):  # the head doubles twice: the previous one follows
        learner.learn(x, y)
    previous = learner.objective.previous
    assert previous.model[6].weight.shape[0] == 8
    for name, parameter in previous.model.named_parameters():
        kept = parameter[:2] if name.startswith("6.") else parameter
        assert torch.equal(kept, want[name]), name
        assert not parameter.requires_grad
    assert_same(previous.projection.state_dict(), projection)
    assert learner.objective._old.tolist() == [True] * 2 + [False] * 6
    assert all(module.training for module in previous.model.modules())


def test_squared_distance_is_over_the_chosen_columns() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4, 5, dtype=torch.float64, generator=generator) for _ in range(2))
    chosen = torch.tensor([True, False, True, True, False])
    want = functional.mse_loss(a[:, [0, 2, 3]], b[:, [0, 2, 3]])
    assert_close(squared_distance(a, b, chosen), want, **EXACT)
    assert squared_distance(a, b, torch.zeros(5, dtype=torch.bool)) == 0


def test_the_presets_follow_the_published_code() -> None:
    settings = preset_settings("split-cifar100", "ocm")
    learner = make(mlp(), **{**settings, "normalize": None, "memory": 10})
    assert learner.wants_boundaries
    assert learner.settings.passes == 1
    group = learner._steps.optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-3, (0.9, 0.99), 1e-4)
    assert (learner.settings.replay_batch, learner.settings.memory_kind) == (64, "reservoir")
