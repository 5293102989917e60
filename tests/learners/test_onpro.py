"""OnPro against its loss written plainly, and its feedback from prototypes."""

from __future__ import annotations

import copy
import math
from itertools import combinations

import pytest
import torch
from rotated_nets import contrast, fix_views, rows, small_net, tilt, tiny_images
from tolerances import EXACT
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from toys import RAW, mlp, vectors

import ocar
from ocar.errors import ConfigError
from ocar.methods.contrastive import prototype_loss
from ocar.methods.onpro import Mixed, close_pairs, mix, share_out
from ocar.methods.registry import preset_settings
from ocar.methods.rotated import same_class
from ocar.rng import make_generator


def make(model: nn.Module, **settings) -> ocar.Learner:
    return ocar.make_learner("onpro", model, **{"memory": 40, **RAW, **settings})


def spy(learner: ocar.Learner) -> list:
    """Replaces what is random in the views, and records steps and what was replayed."""
    objective, found = learner.objective, []
    fix_views(objective)
    inner, replayed = type(objective).__call__, objective._replayed

    class Recorded(type(objective)):
        def __call__(self, forward, step):
            found.append([step, None])
            return inner(self, forward, step)

        def _replayed(self, x, y):
            found[-1][1] = replayed(x, y)
            return found[-1][1]

    objective.__class__ = Recorded
    return found


def equilibrium(model, projection, x: Tensor, y: Tensor) -> Tensor:
    first, second = (rows(projection(model[:-1](view))) for view in (x, tilt(x)))
    return prototype_loss(first, second, y, classes=4, temperature=0.5)[0]


# --- the loss ------------------------------------------------------------------------------------


def test_the_loss_of_the_first_stretch() -> None:
    """Instances and cross-entropy of new samples, prototypes of new and of replayed ones."""
    model = small_net()
    learner = make(model, projection=4, temperature=0.3)
    found = spy(learner)
    learner.remember(*tiny_images(6, [0, 1], 1))
    before, projection = copy.deepcopy(model), copy.deepcopy(learner.objective.projection)
    got = learner.learn(*tiny_images(3, [0, 1], 2)).loss
    ((step, mixed),) = found
    assert step.draws == (6,)
    assert mixed is None
    new, y_new, old, y_old = step.x[:3], step.y[:3], step.x[3:], step.y[3:]
    loss = contrast(before, projection, new, y_new, new=True)
    loss = loss + functional.cross_entropy(before(tilt(new))[:, :2], y_new)
    loss = loss + equilibrium(before, projection, new, y_new)
    loss = loss + equilibrium(before, projection, old, y_old)
    assert_close(got, loss.detach(), **EXACT)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_loss_of_later_stretches_and_its_gradient(rate: float) -> None:
    model = small_net()
    learner = make(
        model,
        projection=4,
        temperature=0.3,
        stretches="boundary",
        optimizer="sgd",
        lr=0.05,
        base_rate=0.5,
        mixup=rate,
    )
    objective = learner.objective
    for seed, labels in ((1, [0, 1]), (2, [0, 1])):
        learner.learn(*tiny_images(5, labels, seed))
    learner.boundary()
    found = spy(learner)
    learner.learn(*tiny_images(5, [2], 3))
    _, mixed = found.pop()
    assert torch.equal(mixed.share, torch.zeros(10, dtype=torch.float64))  # a stretch begins
    before, projection = copy.deepcopy(model), copy.deepcopy(objective.projection)
    got = learner.learn(*tiny_images(3, [2], 4)).loss
    ((step, mixed),) = found
    assert step.draws == (15,)
    assert len(mixed.x) == 15
    assert bool((mixed.share > 0).any()) == (rate == 1.0)
    new, y_new, old, y_old = step.x[:3], step.y[:3], step.x[3:], step.y[3:]
    share, first, second = mixed.share, mixed.first, mixed.second
    loss = contrast(before, projection, new, y_new, new=True)
    labels = first + share * (second - first)
    loss = loss + contrast(before, projection, mixed.x, labels, new=False)
    outputs = before(tilt(mixed.x))[:, :3]
    one = functional.cross_entropy(outputs, first, reduction="none")
    other = functional.cross_entropy(outputs, second, reduction="none")
    loss = loss + ((1 - share) * one + share * other).mean()
    loss = loss + equilibrium(before, projection, new, y_new)
    loss = loss + equilibrium(before, projection, old, y_old)
    assert_close(got, loss.detach(), **EXACT)

    loss.backward()
    pairs = [*zip(model.parameters(), before.parameters(), strict=True)]
    pairs += zip(objective.projection.parameters(), projection.parameters(), strict=True)
    for moved, then in pairs:
        assert_close(moved.detach(), then.detach() - 0.05 * then.grad, rtol=1e-7, atol=1e-10)


def test_the_prototypes_are_those_of_the_last_draw_from_memory() -> None:
    model = small_net()
    learner = make(model, projection=4)
    found = spy(learner)
    learner.remember(*tiny_images(6, [0, 1], 1))
    before, projection = copy.deepcopy(model), copy.deepcopy(learner.objective.projection)
    learner.learn(*tiny_images(3, [2], 2))
    step = found[0][0]
    x, y = step.x[3:], step.y[3:]
    u = [rows(projection(before[:-1](view))) for view in (x, tilt(x))]
    for unit in range(4):
        mine = y == unit
        want = (u[0][mine].mean(0) + u[1][mine].mean(0)) / 2 if mine.any() else torch.zeros(4)
        assert_close(learner.objective.prototypes[unit], want.detach().double(), **EXACT)


# --- feedback ------------------------------------------------------------------------------------


def test_close_prototypes_are_likely_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(6, 3, dtype=torch.float64, generator=generator)
    prototypes[[1, 4]] = 0  # units without a prototype
    pairs, probabilities = close_pairs(prototypes)
    want = {
        pair: math.exp(1 / (prototypes[pair[0]] - prototypes[pair[1]]).norm().item())
        for pair in combinations((0, 2, 3, 5), 2)
    }
    assert [tuple(pair) for pair in pairs.tolist()] == list(want)
    total = sum(want.values())
    for got, weight in zip(probabilities.tolist(), want.values(), strict=True):
        assert got == pytest.approx(weight / total, rel=1e-10)


@pytest.mark.parametrize("there", [0, 1])
def test_fewer_than_two_prototypes_are_no_pair(there: int) -> None:
    prototypes = torch.zeros(4, 3)
    prototypes[:there] = 1.0
    pairs, probabilities = close_pairs(prototypes)
    assert pairs.shape == (0, 2)
    assert probabilities.shape == (0,)


@pytest.mark.parametrize("total", [0, 1, 7, 64])
def test_counts_are_in_proportion_and_exact_in_sum(total: int) -> None:
    generator = make_generator(0, "counts")
    for n in (1, 2, 5, 45):
        weights = torch.rand(n, generator=generator, dtype=torch.float64)
        probabilities = weights / weights.sum()
        counts = share_out(probabilities, total, generator=generator)
        assert counts.sum() == total
        assert counts.min() >= 0
        assert (counts - probabilities * total).abs().max() <= 1.5


def test_mixing_and_labels() -> None:
    x_a, x_b, _ = (torch.randn(4, 2, 3, 3, dtype=torch.float64) for _ in range(3))
    y_a, y_b = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 1, 0, 2])
    share = torch.tensor([0.25, 0.5, 0.0, 0.5])
    mixed = mix(x_a, x_b, y_a, y_b, share)
    for i in range(4):
        lam = share[i].item()
        assert_close(mixed.x[i], (1 - lam) * x_a[i] + lam * x_b[i])
    assert mixed.labels.tolist() == [0.25, 1.0, 2.0, 2.5]
    # Mixed of two classes it is a class of its own; of one class, or not at all, it is of that.
    same = same_class(mixed.labels, views=1, rows=4)
    assert same.sum() == 4


def prepared(**settings) -> ocar.Learner:
    """With three classes in memory and prototypes of all of them, in the second stretch."""
    learner = make(mlp().double(), stretches="boundary", memory_kind="class-balanced", **settings)
    x, y = next(vectors(1, [0, 1, 2], size=30))
    learner.learn(x.double(), y)
    learner.boundary()
    x, y = next(vectors(1, [0, 1, 2], size=10, seed=1))
    learner.learn(x.double(), y)
    learner.objective._first_batch = False
    return learner


def test_part_of_what_is_replayed_comes_from_pairs_of_classes() -> None:
    learner = prepared(base_rate=0.75, mixup=0.0)
    memory = learner.memory.gather(learner.memory.slots)
    objective = learner.objective
    objective.prototypes = torch.zeros(4, 8, dtype=torch.float64)
    objective.prototypes[0, 0] = objective.prototypes[2, 0] = 1.0
    objective.prototypes[2, 1] = 1e-3  # 0 and 2 are all but alike
    objective.prototypes[1, 0] = -5.0
    mixed = objective._replayed(memory.x[:20], memory.y[:20])
    assert len(mixed.x) == 20
    for item, unit in zip(mixed.x[:15], mixed.first[:15], strict=True):
        found = (memory.x[:20] == item).all(1)
        assert found.sum() == 1  # without replacement, not mixed
        assert memory.y[:20][found] == unit
    assert len({tuple(item.tolist()) for item in mixed.x[:15]}) == 15
    assert mixed.first[15:].tolist() == [0] * 5
    assert mixed.second[15:].tolist() == [2] * 5
    for item in mixed.x[15:]:
        assert (memory.x[memory.y == 0] == item).all(1).any()


def test_shares_of_mixed_samples() -> None:
    learner = prepared(mixup=1.0, mixup_largest=0.6, mixup_alpha=0.4)
    objective, memory = learner.objective, learner.memory.gather(learner.memory.slots)
    uniform = torch.cat([objective._mix_uniform(memory.x, memory.y).share for _ in range(100)])
    assert 0 < uniform.min() < 0.01
    assert 0.59 < uniform.max() < 0.6
    assert uniform.mean().item() == pytest.approx(0.3, abs=0.02)
    beta = objective._mix_pair((0, 1), 4000).share
    assert beta.mean().item() == pytest.approx(0.5, abs=0.03)
    assert beta.var().item() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.02)


def test_the_probability_of_mixing_counts_twice_for_uniform_samples() -> None:
    learner = prepared(mixup=0.5)
    objective, memory = learner.objective, learner.memory.gather(learner.memory.slots)
    shares = [objective._mix_uniform(memory.x, memory.y).share > 0 for _ in range(400)]
    mixed = [bool(share.any()) for share in shares]
    assert sum(mixed) / 400 == pytest.approx(0.5, abs=0.1)
    assert torch.cat(shares).double().mean().item() == pytest.approx(0.25, abs=0.06)
    pairs = [bool((objective._mix_pair((0, 1), 3).share > 0).any()) for _ in range(400)]
    assert sum(pairs) / 400 == pytest.approx(0.5, abs=0.1)


def test_a_class_that_left_the_memory_is_replaced_by_another() -> None:
    learner = prepared(mixup=0.0)
    mixed = learner.objective._mix_pair((3, 1), 50)
    assert set(mixed.first.tolist()) <= {0, 1, 2}
    assert set(mixed.second.tolist()) == {1}


def test_shares_by_which_two_units_count_in_the_cross_entropy() -> None:
    outputs = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    active = torch.tensor([True, True, True, False])
    share = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    first, second = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    got = Mixed(outputs, first, second, share).entropy(outputs, active)
    log_p = outputs[:, :3].log_softmax(1)
    want = [-(1 - share[i]) * log_p[i, first[i]] - share[i] * log_p[i, second[i]] for i in range(3)]
    assert_close(got, torch.stack(want).mean(), **EXACT)


# --- as a learner --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_rate": 1.5}, r"Invalid base_rate=1.5. Must be in \[0, 1\]"),
        ({"mixup": -0.1}, "Invalid mixup=-0.1"),
        ({"mixup_alpha": 0.0}, "Invalid mixup_alpha=0.0. Must be larger than 0"),
        ({"prototype_temperature": 0.0}, "Invalid prototype_temperature=0.0"),
    ],
)
def test_wrong_settings_are_refused(options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(mlp(), **options)


def test_the_presets_follow_the_published_code() -> None:
    settings = preset_settings("split-cifar100", "onpro")
    learner = make(mlp(), **{**settings, "normalize": None, "memory": 10})
    assert learner.wants_boundaries
    assert not learner.objective.recordable
    assert learner.settings.passes == 1
    group = learner._steps.optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (5e-4, (0.9, 0.99), 1e-4)
    own = learner.settings
    assert (own.base_rate, own.mixup, own.mixup_alpha, own.mixup_largest) == (0.9, 0.2, 0.4, 0.6)
    assert (own.replay_batch, own.memory_kind) == (64, "reservoir")
