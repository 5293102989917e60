"""RAR against plain loops over samples and steps, with copies of the model."""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, convnet, images, mlp, recorded, vectors

import ocar
from ocar.errors import ConfigError
from ocar.methods.objective import Step

cross_entropy = nn.functional.cross_entropy
KINDS = pytest.mark.parametrize("kind", ["survey", "paper"])


def learner_on(model: nn.Module, **settings) -> ocar.Learner:
    defaults = {"lr": 0.1, "memory": 40, "inner_lr": 0.05, "epsilon": 0.3, "iterations": 4}
    return ocar.make_learner("rar", model, **{**defaults, **RAW, **settings})


def stepped(model: nn.Module, x: Tensor, y: Tensor, *, known: int, lr: float) -> nn.Module:
    """A copy after one real step of SGD."""
    moved = copy.deepcopy(model)
    cross_entropy(moved(x)[:, :known], y).backward()
    torch.optim.SGD(moved.parameters(), lr=lr).step()
    moved.zero_grad()
    return moved


def input_gradient(model: nn.Module, x: Tensor, targets: Tensor, *, known: int) -> Tensor:
    x = x.detach().clone().requires_grad_()
    cross_entropy(model(x)[:, :known], targets).backward()
    return x.grad


def survey_by_hand(moved, x, y, joint_x, joint_y, *, known, epsilon, iterations, decay) -> Tensor:
    """The published tables' code in words: sort, let the last that differs win, ascend, clamp."""
    with torch.no_grad():
        logits, others = moved(x)[:, :known], moved(joint_x)[:, :known]
    targets = []
    for z, label in zip(logits, y.tolist(), strict=True):
        target = 0
        for i in (others - z).norm(dim=1).argsort().tolist():
            if joint_y[i].item() != label:
                target = joint_y[i].item()
        targets.append(target)
    grad = input_gradient(moved, x, torch.tensor(targets), known=known)
    momentum, result = torch.zeros_like(x), x.clone()
    for _ in range(iterations - 1):
        momentum = decay * momentum + grad / grad.abs().sum()
        result = (result + epsilon / iterations * momentum.sign()).clamp(0, 1)
        if (result - x).abs().max() > epsilon:
            break
    return result


def paper_by_hand(moved, x, y, new_x, new_y, *, known, epsilon, iterations, decay) -> Tensor:
    """Towards the nearest new sample of another label, one sample at a time."""
    result = []
    features = moved[:-1]
    for sample, label in zip(x, y.tolist(), strict=True):
        with torch.no_grad():
            gaps = (features(new_x) - features(sample[None])).norm(dim=1)
        order = [i for i in gaps.argsort().tolist() if new_y[i].item() != label]
        point, momentum = sample.clone()[None], 0
        for _ in range(iterations if order else 0):
            grad = input_gradient(moved, point, new_y[order[:1]], known=known)
            momentum = decay * momentum + grad / grad.abs().sum()
            point = point - epsilon / iterations * momentum.sign()
        result.append(point[0])
    return torch.stack(result)


@pytest.mark.usefixtures("double")
@KINDS
@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_perturbation_and_loss_are_those_of_the_plain_loops(kind: str, scale: float) -> None:
    """At the smaller scale most inputs are in [0, 1] after a shift, so that several steps count."""
    options = {"epsilon": 0.3, "iterations": 4, "decay": 0.8}
    learner = learner_on(mlp(units=2), perturbation=kind, beta=0.6, **options)
    steps = recorded(learner)
    moved_inputs = 0
    for labels in ([0, 1], [2, 3], [0, 4]):  # the head doubles twice
        for x, y in vectors(3, labels):
            steps.clear()
            learner.learn((scale * x + 0.5 * (scale < 1)).double(), y)
            known = len(learner.classes)
            for step, before, outcome, inputs in steps:
                if not step.replayed:
                    assert learner.batches == 1
                    assert outcome.step is None
                    continue
                assert step.draws == (10, 10)
                joint_x, joint_y, x_adv, y_adv = split(step)
                moved = stepped(before, joint_x, joint_y, known=known, lr=0.05)
                by_hand = survey_by_hand if kind == "survey" else paper_by_hand
                near = (joint_x, joint_y) if kind == "survey" else (joint_x[:10], joint_y[:10])
                expected = by_hand(moved, x_adv, y_adv, *near, known=known, **options)
                assert_close(inputs[0], joint_x, **EXACT)
                assert_close(inputs[1], expected, **EXACT)
                moved_inputs += int(((expected - x_adv).abs() > 1e-3).sum())
                loss = cross_entropy(before(joint_x)[:, :known], joint_y)
                loss = loss + 0.6 * cross_entropy(before(expected)[:, :known], y_adv)
                assert_close(outcome.loss, loss.detach(), **EXACT)
                assert outcome.step.draws == (10,)
                assert torch.equal(outcome.step.x, joint_x)
                assert torch.equal(outcome.step.y, joint_y)
                assert len(outcome.step.raw) == 20
    assert moved_inputs > 500


def split(step: Step) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n = step.new + step.draws[0]
    return step.x[:n], step.y[:n], step.x[n:], step.y[n:]


@pytest.mark.usefixtures("double")
def test_the_perturbation_goes_towards_the_other_class_in_the_paper_and_away_in_the_survey() -> (
    None
):
    """For a linear model and small steps: p(target) rises with "paper" and falls with "survey"."""
    for kind, sign in (("paper", 1), ("survey", -1)):
        model = nn.Linear(6, 2)
        options = {"epsilon": 1e-3, "inner_lr": 0.0, "perturbation": kind}
        learner = learner_on(model, passes=1, **options)
        x, y = next(vectors(1, [0, 1], seed=3))
        # Inputs within [0, 1], so that the survey's clamp has nothing to do.
        x = (0.5 + 0.02 * x).double()
        learner.remember(x, y)
        steps = recorded(learner)
        learner.learn(x, y)
        (step, before, _, inputs), *_ = steps
        _, _, x_adv, y_adv = split(step)
        with torch.no_grad():
            probability = [before(z).softmax(1) for z in (x_adv, inputs[1])]
        other = 1 - y_adv[:, None]
        change = (probability[1] - probability[0]).gather(1, other)
        assert (sign * change > 0).all()


@pytest.mark.usefixtures("double")
@KINDS
def test_without_weight_or_without_reach_it_is_er(kind: str) -> None:
    """β = 0 is ER; with ε = 0 the second draw is replayed as it is."""
    first, second = vectors(2, [0, 1, 2])
    er, rar, still = models = [mlp(units=2) for _ in range(3)]
    learners = [
        ocar.ER(er, lr=0.1, memory=10, **RAW),
        learner_on(rar, beta=0.0, perturbation=kind, memory=10),
        learner_on(still, beta=0.5, epsilon=0.0, perturbation=kind, memory=10),
    ]
    steps = recorded(learners[2])
    for learner in learners:
        for x, y in ((first[0] / 20 + 0.5, first[1]), (second[0] / 20 + 0.5, second[1])):
            if learner.memory.seen:  # what is replayed is all of the memory, in some order
                learner.learn(x.double(), y)
            else:
                learner.remember(x.double(), y)
    assert_close(dict(er.named_parameters()), dict(rar.named_parameters()), **EXACT)
    for step, _, _, inputs in steps:
        assert_close(inputs[1], split(step)[2], **EXACT)
    assert not torch.allclose(still[0].weight, er[0].weight)
    assert len({model[2].out_features for model in models}) == 1


def test_bytes_stay_within_what_a_byte_can_be() -> None:
    normalize = ocar.Normalize(mean=(0.4,), std=(0.3,))
    options = {"perturbation": "paper", "normalize": normalize, "epsilon": 5.0}
    learner = learner_on(convnet(), **options)
    steps = recorded(learner)
    for x, y in images(3, [0, 1, 2]):
        learner.learn(x, y)
    low, high = -0.4 / 0.3, 0.6 / 0.3
    moved = torch.cat([inputs[1] for *_, inputs in steps[3:]])
    assert moved.min() >= low - 1e-6
    assert moved.max() <= high + 1e-6
    assert ((moved - low).abs() < 1e-5).any()
    assert ((moved - high).abs() < 1e-5).any()


@pytest.mark.usefixtures("double")
def test_a_sample_without_a_neighbour_of_another_label_stays_as_it_is() -> None:
    learner = learner_on(mlp(), perturbation="paper")
    steps = recorded(learner)
    for x, y in vectors(3, [4]):
        learner.learn(x.double(), y)
    for step, _, _, inputs in steps[3:]:
        assert torch.equal(inputs[1], split(step)[2])


@pytest.mark.usefixtures("double")
def test_a_survey_that_stops_and_one_that_need_not() -> None:
    """Inputs below 0 are cut, which is more than ε, so that no second step is taken."""
    outside = learner_on(mlp(), epsilon=0.2, iterations=5)
    inside = learner_on(mlp(), epsilon=0.2, iterations=5)
    for learner, shift, reach in ((outside, 0.0, 0.04), (inside, 0.5, 0.16)):
        steps = recorded(learner)
        for x, y in vectors(3, [0, 1]):
            learner.learn((x / 20 + shift if shift else x).double(), y)
        for step, _, _, inputs in steps[3:]:
            before = split(step)[2]
            free = (before > 0.2) & (before < 0.8)
            assert_close((inputs[1] - before).abs()[free], torch.full((int(free.sum()),), reach))


@KINDS
def test_running_statistics_move_with_the_joint_and_the_perturbed_batch_alone(kind: str) -> None:
    learner = learner_on(convnet(), perturbation=kind, passes=1)
    steps = recorded(learner)
    for x, y in images(3, [0, 1, 2]):
        learner.learn(x, y)
    _, before, _, inputs = steps[-1]
    with torch.no_grad():
        for part in inputs:
            before(part)
    assert [len(part) for part in inputs] == [20, 10]
    assert_close(learner.model[1].running_mean, before[1].running_mean)
    assert_close(learner.model[1].running_var, before[1].running_var)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -1.0}, r"Invalid beta=-1.0. Must be at least 0"),
        ({"epsilon": -1.0}, r"Invalid epsilon=-1.0. Must be at least 0"),
        ({"iterations": 0}, r"Invalid iterations=0. Must be at least 1"),
        ({"decay": -0.1}, r"Invalid decay=-0.1. Must be at least 0"),
        ({"inner_lr": -0.1}, r"Invalid inner_lr=-0.1. Must be at least 0"),
        ({"perturbation": "x"}, r"Invalid perturbation='x'. Must be one of 'survey', 'paper'"),
        (
            {"likelihood": "gaussian", "memory_kind": "reservoir"},
            r"Must be 'categorical': a regression has no classes",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        learner_on(mlp(), **settings)
