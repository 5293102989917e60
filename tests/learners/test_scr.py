"""SCR against plain loops: its loss, its step, its class means."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, convnet, images, mlp, seeded, vectors

import ocar
from ocar.errors import CheckpointError, ConfigError
from ocar.methods.contrastive import supervised_contrastive
from ocar.methods.registry import make_settings, preset_settings
from ocar.methods.scr import SCRSettings

SURVEY = {
    "base_temperature": 0.07,
    "unit_length": "features",
    "views": "survey",
    "means": "averaged",
}


def make(model: nn.Module, **settings) -> ocar.Learner:
    return ocar.make_learner("scr", model, **{"lr": 0.1, "memory": 40, **RAW, **settings})


def double_loop(z: Tensor, y: Tensor, temperature: float) -> float:
    total = 0.0
    for i in range(len(z)):
        others = [a for a in range(len(z)) if a != i]
        bottom = sum(math.exp(float(z[i] @ z[a]) / temperature) for a in others)
        positives = [p for p in others if y[p] == y[i]]
        terms = [math.log(math.exp(float(z[i] @ z[p]) / temperature) / bottom) for p in positives]
        total -= sum(terms) / len(terms)
    return total / len(z)


# --- the loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
@pytest.mark.parametrize("labels", [[0, 1, 1, 2, 0], [3, 3, 3], [1]])
def test_the_loss_equals_a_double_loop(labels: list[int], temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor(labels).repeat(2)
    z = torch.randn(len(y), 7, dtype=torch.float64, generator=generator)
    z = z / z.norm(dim=1, keepdim=True) if temperature < 1 else z
    got = supervised_contrastive(z, y, temperature=temperature)
    assert got.item() == pytest.approx(double_loop(z, y, temperature), rel=1e-10, abs=1e-12)


def test_one_sample_alone_has_nothing_to_be_told_from() -> None:
    z = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    loss = supervised_contrastive(z, torch.tensor([4, 4]), temperature=0.1)
    assert_close(loss, torch.zeros((), dtype=torch.float64))
    loss.backward()
    assert_close(z.grad, torch.zeros_like(z))


def test_a_high_temperature_makes_all_views_alike() -> None:
    z = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loss = supervised_contrastive(z, torch.arange(6).repeat(2), temperature=1e9)
    assert loss.item() == pytest.approx(math.log(11), rel=1e-8)


@pytest.mark.parametrize("options", [{}, SURVEY, {"base_temperature": 0.2}])
def test_a_step_follows_the_gradient_of_the_loop(options) -> None:
    """One step on new and replayed samples; finite differences are not needed: autograd of a
    second, plain way to write the whole loss."""
    model = mlp(units=4).double()
    learner = make(model, passes=1, replay_batch=6, temperature=0.3, lr=0.05, **options)
    (old_x, old_y), *_ = vectors(1, [0, 1], size=6)
    (new_x, new_y), *_ = vectors(1, [1, 2], seed=1, size=4)
    learner.remember(old_x.double(), old_y)
    objective = learner.objective
    seen = []

    def second_view(step):
        seen.append(step)
        return step.x * 0.9 + 0.1

    objective.second_view = second_view
    body, projection = copy.deepcopy(model), copy.deepcopy(objective.projection)
    report = learner.learn(new_x.double(), new_y)
    (step,) = seen
    assert step.new == 4
    assert len(step.x) == 10
    assert_close(step.x[:4], new_x.double())

    x = torch.cat([step.x, step.x * 0.9 + 0.1])
    f = body[1](body[0](x))
    if options.get("unit_length") == "features":
        z = projection(f / f.norm(dim=1, keepdim=True))
    else:
        z = projection(f)
        z = z / z.norm(dim=1, keepdim=True)
    loss = z.new_zeros(())
    y = step.y.repeat(2)
    for i in range(20):
        others = [a for a in range(20) if a != i]
        bottom = torch.stack([(z[i] @ z[a] / 0.3).exp() for a in others]).sum()
        positives = [p for p in others if y[p] == y[i]]
        terms = [((z[i] @ z[p] / 0.3).exp() / bottom).log() for p in positives]
        loss = loss - torch.stack(terms).mean() / 20
    if "base_temperature" in options:
        loss = loss * 0.3 / options["base_temperature"]
    assert_close(report.loss, loss.detach(), **EXACT)
    loss.backward()
    assert body[2].weight.grad is None  # the head has no part in it
    pairs = [*zip(model[:2].parameters(), body[:2].parameters(), strict=True)]
    pairs += zip(objective.projection.parameters(), projection.parameters(), strict=True)
    for moved, before in pairs:
        assert not torch.equal(moved, before)
        assert_close(moved.detach(), before.detach() - 0.05 * before.grad, **EXACT)
    assert torch.equal(model[2].weight, body[2].weight)


# --- views ---------------------------------------------------------------------------------------


def colours(count: int, size: int = 8):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        x = torch.randint(0, 256, (size, 3, 8, 8), generator=generator, dtype=torch.uint8)
        yield x, torch.randint(0, 3, (size,), generator=generator)


def colour_net() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Linear(8, 4)))


@pytest.mark.parametrize("views", ["unit", "survey"])
def test_the_second_view_is_the_strong_augmentation_of_the_raw_samples(views: str) -> None:
    normalize = ocar.Normalize(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))
    learner = make(colour_net(), views=views, normalize=normalize, passes=1)
    x, y = next(colours(1))
    steps = []
    objective = learner.objective
    original, state = objective.second_view, objective.generator.get_state()

    def record(step):
        steps.append((step, original(step)))
        return steps[-1][1]

    objective.second_view = record
    learner.learn(x, y)
    ((step, got),) = steps
    assert_close(step.x, normalize(x))  # the first view is plain
    generator = torch.Generator()
    generator.set_state(state)
    strong = learner.settings.strong
    if views == "unit":
        want = normalize(strong(x, generator))
        pixels = want * torch.tensor([0.2, 0.3, 0.25]).view(3, 1, 1)
        pixels = pixels + torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)
        assert pixels.min() > -1e-5
        assert pixels.max() < 1 + 1e-5
    else:
        want = strong.augment(normalize(x), generator)
        smallest = want.flatten(1).amin(1)
        # Jittered samples are cut at 0, unless hue comes last; the others keep their range.
        assert (smallest < -0.5).any()
    assert torch.equal(got, want)


def test_the_strong_augmentation_is_the_surveys() -> None:
    crop, flip, jitter, grey = SCRSettings(lr=0.1).strong.parts
    assert (crop.scale, crop.ratio, crop.align_corners) == ((0.2, 1.0), (3 / 4, 4 / 3), True)
    assert not crop.whole_side
    assert not crop.half_pixels
    assert flip.probability == 0.5
    assert (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue) == (
        0.4,
        0.4,
        0.4,
        0.1,
    )
    assert (jitter.probability, grey.probability) == (0.8, 0.2)


def test_nothing_is_replayed_before_the_memory_holds_a_whole_batch() -> None:
    learner = make(mlp(), replay_batch=25, partial_replay=False, passes=1)
    sizes = []
    inner = learner.objective.second_view
    learner.objective.second_view = lambda step: (sizes.append(len(step.x)), inner(step))[1]
    for x, y in vectors(5, [0, 1]):
        learner.learn(x, y)
    assert sizes == [10, 10, 10, 35, 35]


# --- class means ---------------------------------------------------------------------------------


def features_of(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    f = model[:-1](x)
    model.train()
    return f / f.norm(dim=1, keepdim=True)


def means_by_loop(learner: ocar.Learner) -> dict[int, Tensor]:
    memory = learner.memory.gather(learner.memory.slots)
    with torch.no_grad():
        f = features_of(learner.model, learner.intake.normalize(memory.x))
    found = {}
    for unit in sorted(set(memory.y.tolist())):
        mean = torch.stack([f[i] for i in range(len(f)) if memory.y[i] == unit]).mean(0)
        found[unit] = mean / mean.norm()
    return found


@pytest.mark.parametrize("means", ["recomputed", "averaged"])
def test_predictions_are_minus_the_distances_to_the_class_means(means: str) -> None:
    learner = make(convnet(units=2).double(), means=means, means_rate=0.3, memory=15)
    want: dict[int, Tensor] = {}
    for index, (x, y) in enumerate(images(7, [0, 1, 2, 3, 4])):
        if index < 3:
            x, y = x[y < 2], y[y < 2]  # the head grows from 2 to 8 on the way
        learner.learn(x, y)
        if index == 3:  # only recomputed means may wait for a prediction
            learner.predict(x)
        for unit, mean in means_by_loop(learner).items():
            old = want.get(unit)
            if means == "averaged" and old is not None:
                mean = 0.3 * mean + 0.7 * old
            want[unit] = mean
    assert len(want) == 5
    got = learner.predict(x)
    with torch.no_grad():
        f = features_of(learner.model, learner.intake.normalize(x))
    for i in range(len(x)):
        for unit in range(5):
            distance = (f[i] - want[unit]).norm().item()
            assert got[i, unit].item() == pytest.approx(-distance, rel=1e-9, abs=1e-9)


def test_means_follow_what_is_only_remembered() -> None:
    learner = make(mlp())
    (x, y), (late_x, _) = vectors(2, [0, 1])
    learner.learn(x, y)
    learner.predict(x)
    learner.remember(late_x, torch.full((10,), 9))
    assert (learner.predict(late_x)[:, -1] > -2).all()


def test_a_class_without_samples_in_memory_is_never_predicted() -> None:
    learner = make(mlp(), memory=2)
    for label in (0, 1, 2):  # two slots: the third class gets none
        x, y = next(vectors(1, [label]))
        learner.learn(x, y)
    scores = learner.predict(x)
    assert scores.shape == (10, 3)
    assert (scores[:, 2] == -1000).all()


# --- as a learner --------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["ocar", "ngd", "ewc"])
def test_transforms_that_need_a_distribution_are_refused(transform: str) -> None:
    own = {
        "ocar": {"tau_step": 0.0, "ema": 0.1},
        "ngd": {"damping": 0.1, "ema": 0.1},
        "ewc": {"strength": 1.0},
    }[transform]
    with pytest.raises(ConfigError, match=r"SCR has no predictive distribution, which .*Settings"):
        make(mlp(), transform=transform, **own)


def test_a_transform_that_needs_none_goes_with_it() -> None:
    settings, transform = make_settings("scr", transform="lpr", lr=0.1)
    assert settings.refuses(transform) is None


def test_a_checkpoint_with_another_projection_is_refused(tmp_path: Path) -> None:
    learner = make(mlp(), projection=5)
    learner.learn(*next(vectors(1, [0, 1])))
    tensors, values = learner.state()
    with pytest.raises(CheckpointError, match="of another projection"):
        make(mlp(), projection=6).load_state(tensors, values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "Invalid temperature=0.0. Must be larger than 0"),
        ({"views": "plain"}, "Invalid views='plain'. Must be one of 'unit', 'survey'"),
        ({"means": "last"}, "Invalid means='last'"),
        ({"unit_length": "none"}, "Invalid unit_length='none'"),
        ({"crop_scale": 0.0}, r"Invalid scale=\(0.0, 1.0\)"),
        ({"prediction": "average"}, "Invalid prediction='average'. Must be 'plain'"),
        ({"likelihood": "gaussian", "memory_kind": "reservoir"}, "Invalid likelihood='gaussian'"),
    ],
)
def test_wrong_settings_are_refused(options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(mlp(), **options)


def test_the_presets_are_the_surveys() -> None:
    settings = preset_settings("split-cifar100", "scr")
    assert settings["lr"] == 0.0817695
    assert settings["temperature"] == 0.175323
    assert settings["replay_batch"] == 118
    assert settings["partial_replay"] is False
    assert settings["augment"] is None
    assert {name: settings[name] for name in SURVEY} == SURVEY
