"""ER + LwF against the definition of its loss, and the life of its teacher."""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, assert_same, convnet, images, mlp, seeded, vectors, weights

import ocar
from ocar.errors import CheckpointError, ConfigError
from ocar.methods.lwf import divergence


def learner_on(model: nn.Module, **settings) -> ocar.Learner:
    return ocar.make_learner("er-lwf", model, **{"lr": 0.1, "memory": 40, **RAW, **settings})


def divergence_by_hand(targets: Tensor, outputs: Tensor, over: list[int], t: float) -> float:
    """Sums in plain Python: 1/n Σᵢ Σ_{c ∈ A} q (log q − log p)."""
    total = 0.0
    for z_teacher, z in zip(targets.tolist(), outputs.tolist(), strict=True):
        q, p = ([torch.e ** (row[c] / t) for c in over] for row in (z_teacher, z))
        q, p = ([v / sum(values) for v in values] for values in (q, p))
        total += sum(
            b * (torch.tensor(b).log() - torch.tensor(a).log()) for a, b in zip(p, q, strict=True)
        )
    return float(total) / len(targets)


@pytest.mark.usefixtures("double")
def test_the_divergence_is_the_plain_sum_over_the_distilled_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    targets, outputs = (3 * torch.randn(5, 6, generator=generator) for _ in range(2))
    over = torch.tensor([True, False, True, True, False, False])
    for temperature in (1.0, 2.5):
        found = divergence(targets, outputs, over, temperature=temperature)
        expected = divergence_by_hand(targets, outputs, [0, 2, 3], temperature)
        assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.usefixtures("double")
def test_the_divergence_is_zero_for_equal_logits_and_for_nothing_distilled() -> None:
    outputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    every, none = torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)
    targets = outputs.detach()
    for target, over in ((targets, every), (targets + 1, none)):
        found = divergence(target, outputs, over, temperature=2.0)
        assert found.item() == 0
        assert torch.autograd.grad(found, outputs)[0].abs().max() < 1e-12


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("distilled", ["survey", "paper"])
def test_a_step_is_that_of_the_formula(distilled: str) -> None:
    """New samples of classes 2 and 3 after a boundary, all of the memory replayed."""
    model = mlp(units=8)
    learner = learner_on(model, memory=5, alpha=0.7, temperature=1.5, passes=1, distilled=distilled)
    (old_x, old_y), *_ = vectors(1, [0, 1], size=5)
    learner.learn(old_x.double(), old_y)
    learner.boundary()
    teacher = copy.deepcopy(model)
    for seed in (1, 2):  # of the second batch the teacher is one batch old
        student = copy.deepcopy(model)
        stored = learner.memory._slots.clone()
        memory = learner.memory.gather(stored)
        x, y = next(vectors(1, [2, 3], seed=seed, size=4))
        learner.learn(x.double(), y)
    units = torch.tensor([learner.classes.index(label) for label in y.tolist()])
    joint, targets = torch.cat([x.double(), memory.x]), torch.cat([units, memory.y])
    known = len(learner.classes)
    over = range(known)[2:] if distilled == "survey" else range(2)
    z, z_teacher = student(joint), teacher(joint).detach()
    p = (z[:, over] / 1.5).log_softmax(1)
    q = (z_teacher[:, over] / 1.5).softmax(1)
    loss = nn.functional.cross_entropy(z[:, :known], targets)
    loss = loss + 0.7 * (q * (q.log() - p)).sum() / len(joint)
    grads = torch.autograd.grad(loss, list(student.parameters()))
    for parameter, before, grad in zip(
        model.parameters(), student.parameters(), grads, strict=True
    ):
        assert_close(parameter, before - 0.1 * grad, **EXACT)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("distilled", ["survey", "paper"])
def test_with_weight_zero_or_before_the_first_boundary_it_is_er(distilled: str) -> None:
    models = [mlp(units=2) for _ in range(3)]
    er = ocar.ER(models[0], lr=0.1, memory=40, **RAW)
    without = learner_on(models[1], alpha=0.0, distilled=distilled)
    untold = learner_on(models[2], alpha=2.0, distilled=distilled)
    for labels in ([0, 1], [2, 3, 4]):  # the head doubles twice
        for x, y in vectors(4, labels):
            for learner in (er, without, untold):
                learner.learn(x.double(), y)
        without.boundary()
    for model in models[1:]:
        assert_close(weights(model), weights(models[0]), **EXACT)


@pytest.mark.usefixtures("double")
def test_a_heavy_distillation_keeps_what_the_teacher_says_of_old_classes() -> None:
    changes = []
    for alpha in (0.0, 10.0):
        learner = learner_on(mlp(units=4), alpha=alpha, distilled="paper", lr=0.05, memory=1)
        for x, y in vectors(10, [0, 1]):
            learner.learn(x.double(), y)
        learner.boundary()
        probe = next(vectors(1, [2, 3], seed=5))[0].double()
        before = learner.predict(probe).softmax(1)
        for x, y in vectors(10, [2, 3]):
            learner.learn(x.double(), y)
        after = learner.predict(probe)[:, :2].softmax(1)
        changes.append(float((after - before).abs().mean()))
    assert changes[1] < 0.5 * changes[0]


def test_the_teacher_is_copied_at_boundaries_alone() -> None:
    model = mlp(units=4)
    learner = learner_on(model)
    assert learner.wants_boundaries
    objective = learner.objective
    learner.boundary()  # nothing has been learned: no teacher yet
    for x, y in vectors(3, [0, 1]):
        learner.learn(x, y)
        assert not objective.has_teacher
        assert objective.distilled == ()
    learner.boundary()
    end_of_task = weights(model)
    addresses = [p.data_ptr() for p in objective.teacher.parameters()]
    for x, y in vectors(3, [2, 3]):
        learner.learn(x, y)
        assert torch.equal(weights(objective.teacher), end_of_task)
    assert not torch.equal(weights(model), end_of_task)
    assert objective.distilled == (2, 3)
    learner.boundary()
    end_of_task = weights(model)
    learner.learn(*next(vectors(1, [0])))
    assert torch.equal(weights(objective.teacher), end_of_task)
    assert objective.distilled == (learner.classes.index(0), 2, 3)
    assert [p.data_ptr() for p in objective.teacher.parameters()] == addresses  # all in place


def test_without_boundaries_the_teacher_follows_the_count_of_batches() -> None:
    model = mlp(units=8)
    learner = learner_on(model, teacher="batches", refresh=3, distilled="paper")
    assert not learner.wants_boundaries
    copied = []
    for i, (x, y) in enumerate(vectors(10, [0, 1, 2, 3, 4, 5, 6, 7], size=2)):
        before, known = weights(model), len(learner.classes)
        learner.learn(x, y)
        if i >= 3 and torch.equal(weights(learner.objective.teacher), before):
            copied.append(i)
            assert learner.objective.distilled == tuple(range(known))
    assert copied == [3, 6, 9]


def test_without_boundaries_the_teacher_follows_new_labels() -> None:
    model = mlp(units=8)
    # A full head from the start: what is new is what has not been learned.
    learner = learner_on(model, teacher="labels", distilled="paper", classes=range(8))
    copied = []
    for i, labels in enumerate([[0, 1], [1], [0], [1, 2], [0, 2], [5], [5], [2, 0]]):
        before = weights(model)
        x = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(i))
        learner.learn(x, torch.tensor(labels))
        if learner.objective.has_teacher:
            same = torch.equal(weights(learner.objective.teacher), before)
            copied.append((i, learner.objective.distilled)) if same else None
    assert copied == [(3, (0, 1)), (5, (0, 1, 2))]


def test_a_head_that_doubles_gives_the_teacher_the_same_fresh_units() -> None:
    model = mlp(units=2)
    learner = learner_on(model)
    learner.learn(*next(vectors(1, [0, 1])))
    learner.boundary()
    old = model[2].weight.detach().clone()
    learner.learn(*next(vectors(1, [2], seed=1)))
    teacher = learner.objective.teacher[2]
    assert_close(teacher.weight[:2], old)
    assert teacher.weight.shape == model[2].weight.shape
    learner.learn(*next(vectors(1, [3], seed=2)))
    learner.learn(*next(vectors(1, [4, 5], seed=3)))  # in the middle of a task
    assert teacher.weight.shape == (8, 8)
    assert_close(teacher.weight[:2], old)
    assert not torch.equal(model[2].weight[4:6], teacher.weight[4:6])
    assert torch.equal(model[2].weight[6:], teacher.weight[6:])
    assert learner.objective.distilled == (2, 3, 4, 5)


def test_the_teachers_mode() -> None:
    for mode in ("train", "eval"):
        model = convnet()
        learner = learner_on(model, teacher_mode=mode, teacher="batches", refresh=1)
        for x, y in images(3, [0, 1]):
            copied = copy.deepcopy(model.state_dict())
            learner.learn(x, y)
        teacher = learner.objective.teacher
        assert teacher.training == (mode == "train")
        kept = torch.equal(teacher[1].running_mean, copied["1.running_mean"])
        assert kept == (mode == "eval")


def test_a_frozen_norm_is_frozen_in_the_teacher_too() -> None:
    model = convnet()
    model[1].requires_grad_(False)
    learner = learner_on(model, teacher="batches", refresh=1)
    for x, y in images(3, [0, 1]):
        learner.learn(x, y)
    teacher = learner.objective.teacher
    assert teacher.training
    assert not teacher[1].training
    assert torch.equal(teacher[1].running_mean, model[1].running_mean)


def test_the_teacher_has_no_part_in_the_curvature() -> None:
    """With the weight at 0, OCAR on ER + LwF is OCAR on ER, from the same forward pass."""
    options = {"lr": 0.02, "tau_step": 1e-6, "ema": 0.2, "memory": 40}
    models = [convnet(units=2) for _ in range(2)]
    plain = ocar.make_learner("ocar", models[0], **options)
    both = ocar.make_learner("er-lwf", models[1], transform="ocar", alpha=0.0, **options)
    for labels in ([0, 1], [2, 3]):
        for x, y in images(4, labels):
            plain.learn(x, y)
            both.learn(x, y)
        both.boundary()
    assert_same(models[0].state_dict(), models[1].state_dict())


def test_a_teacher_of_another_model_is_refused() -> None:
    learner = learner_on(mlp())
    state = learner.objective.state_dict()
    other = seeded(lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)))
    with pytest.raises(CheckpointError, match="of another teacher"):
        learner_on(other).objective.load_state_dict(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -1.0}, r"Invalid alpha=-1.0. Must be at least 0"),
        ({"temperature": 0.0}, r"Invalid temperature=0.0. Must be larger than 0"),
        ({"refresh": 0}, r"Invalid refresh=0. Must be at least 1"),
        ({"teacher": "tasks"}, r"Invalid teacher='tasks'. Must be one of 'boundary'"),
        ({"distilled": "all"}, r"Invalid distilled='all'. Must be one of 'survey', 'paper'"),
        ({"teacher_mode": "off"}, r"Invalid teacher_mode='off'. Must be one of 'train', 'eval'"),
        (
            {"likelihood": "gaussian", "memory_kind": "reservoir"},
            r"Must be 'categorical': a regression has no classes",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        learner_on(mlp(), **settings)
