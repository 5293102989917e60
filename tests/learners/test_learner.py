"""What every learner promises, whatever its objective and transform."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from toys import assert_same, convnet, everything, images, mlp, seeded, vectors

import ocar
from ocar.errors import CheckpointError, ConfigError, InputError, ModelError
from ocar.learners import METHODS, PRESETS
from ocar.learners.registry import preset_settings

SETTINGS = {"er": {"lr": 0.1}, "ocar": {"lr": 0.02, "tau_step": 1e-6, "ema": 0.2}}
EVERY_METHOD = pytest.mark.parametrize("method", SETTINGS)


def make(method: str, model: nn.Module, **settings) -> ocar.Learner:
    return ocar.make_learner(method, model, **{**SETTINGS[method], "memory": 40, **settings})


def test_every_method_is_in_this_suite() -> None:
    assert set(SETTINGS) == set(METHODS)


# --- learning ------------------------------------------------------------------------------------


@EVERY_METHOD
@pytest.mark.parametrize("kind", ["class-balanced", "reservoir"])
def test_learns_classes_that_arrive_one_after_another(method: str, kind: str) -> None:
    learner = make(method, mlp(units=2), memory_kind=kind)
    for labels in ([7, 3], [11], [0, 5]):
        for x, y in vectors(40, labels):
            learner.learn(x, y)
    (x, y), *_ = vectors(1, [0, 3, 5, 7, 11], seed=5, size=200)
    logits = learner.predict(x)
    assert logits.shape == (200, 5)
    assert sorted(learner.classes) == [0, 3, 5, 7, 11]
    assert set(learner.classes[:2]) == {7, 3}
    predicted = torch.tensor(learner.classes)[logits.argmax(1)]
    assert (predicted == y).double().mean() > 0.9
    assert len(learner.memory) <= 40
    assert learner.batches == 120
    assert learner.steps == 360


@EVERY_METHOD
def test_inputs_are_not_changed_and_predict_changes_nothing(method: str) -> None:
    learner = make(method, convnet(), augment=ocar.CropFlip(padding=1))
    (x, y), *_ = images(1, [0, 1, 2])
    x_before, y_before = x.clone(), y.clone()
    learner.learn(x, y)
    learner.learn(x, y)
    before = everything(learner)
    modes = [m.training for m in learner.model.modules()]
    learner.predict(x)
    assert_same(everything(learner), before)
    assert [m.training for m in learner.model.modules()] == modes
    assert torch.equal(x, x_before)
    assert torch.equal(y, y_before)


@EVERY_METHOD
def test_first_batch_one_class_and_a_batch_of_another_size(method: str) -> None:
    learner = make(method, convnet())
    assert learner.classes == ()
    for (x, y), size in zip(images(3, [4]), (1, 10, 3), strict=True):
        report = learner.learn(x[:size], y[:size])
        assert torch.isfinite(report.loss)
    assert learner.classes == (4,)
    assert learner.predict(x).shape == (10, 1)


@EVERY_METHOD
def test_remember_stores_without_learning(method: str) -> None:
    model = mlp()
    learner = make(method, model)
    weights = nn.utils.parameters_to_vector(model.parameters()).clone()
    (x, y), *_ = vectors(1, [0, 1])
    learner.remember(x, y)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), weights)
    assert len(learner.memory) == 10
    assert sorted(learner.classes) == [0, 1]


def test_new_and_replayed_samples_are_augmented_afresh_and_stored_raw() -> None:
    seen = []

    def augment(x, generator):
        seen.append(x.clone())
        return x.flip(-1)

    learner = make("er", convnet(), augment=augment, passes=3)
    batches = list(images(2, [0, 1]))
    for x, y in batches:
        learner.learn(x, y)
    assert [len(x) for x in seen] == [10, 10, 10, 20, 20, 20]
    stored = learner.memory.sample(20).x
    offered = torch.cat([x for x, _ in batches])
    assert all((offered == item).flatten(1).all(1).any() for item in stored)
    assert not torch.equal(seen[3][10:], seen[4][10:])  # a fresh draw for each pass


def test_a_kept_draw_serves_all_passes() -> None:
    seen = []
    learner = make("er", convnet(), replay="kept", augment=lambda x, g: (seen.append(x), x)[1])
    for x, y in images(4, [0, 1]):
        learner.learn(x, y)
    assert torch.equal(seen[-1], seen[-2])
    assert not torch.equal(seen[-1][10:], seen[-4][10:])


def test_normalization_and_the_scaling_of_bytes() -> None:
    inputs = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    model.register_forward_pre_hook(lambda module, args: inputs.append(args[0].clone()))
    x = next(images(1, [0, 1]))[0]
    plain = ocar.ER(model, lr=0.1)
    plain.predict(x)
    assert_close(inputs[-1], x.float() / 255)
    normal = ocar.ER(model, lr=0.1, normalize=ocar.Normalize(mean=(0.5,), std=(0.25,)))
    normal.predict(x)
    assert_close(inputs[-1], (x.float() / 255 - 0.5) / 0.25)


def test_prediction_with_the_moving_average_of_the_weights() -> None:
    model = mlp(units=2)
    learner = make("er", model, prediction="average", average_rate=0.25, passes=1)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    for labels in ([0, 1], [2]):  # the head doubles in between
        for x, y in vectors(3, labels):
            learner.learn(x, y)
            for name, p in model.named_parameters():
                if average[name].shape != p.shape:
                    added = p.detach().clone()
                    added[: len(average[name])] = average[name]
                    # Units that are new start at their weights before the step.
                    average[name] = added
                    fresh = slice(2, None)
                    average[name][fresh] = learner._average[name][fresh]
                    kept = average[name][:2]
                    average[name][:2] = kept + 0.25 * (p.detach()[:2] - kept)
                else:
                    average[name] += 0.25 * (p.detach() - average[name])
    expected = torch.func.functional_call(model, average, (x,))[:, :3]
    assert_close(learner.predict(x), expected)
    assert not torch.allclose(learner.predict(x), model(x)[:, :3])


def test_regression_learns_a_linear_map() -> None:
    model = seeded(lambda: nn.Linear(6, 2))
    truth = torch.randn(6, 2, generator=torch.Generator().manual_seed(3))
    settings = {"likelihood": "gaussian", "memory_kind": "reservoir", "memory": 50}
    for curvature in ("kfac", "dense"):
        learner = ocar.OCAR(
            model, lr=0.1, tau=0.1, tau_step=0.0, ema=0.1, curvature=curvature, **settings
        )
        for x, _ in vectors(60, [0, 1, 2]):
            learner.learn(x, x @ truth)
        assert_close(learner.predict(x), x @ truth, rtol=1e-2, atol=5e-2)
        assert learner.classes == ()


def test_given_classes_are_active_from_the_start() -> None:
    learner = make("ocar", mlp(units=4), classes=range(4))
    assert learner.classes == (0, 1, 2, 3)
    x, y = next(vectors(1, [2]))
    learner.learn(x, y)
    assert learner.predict(x).shape == (10, 4)
    assert learner.classes == (0, 1, 2, 3)


# --- models --------------------------------------------------------------------------------------


@EVERY_METHOD
def test_frozen_layers_stay_and_get_no_factors(method: str) -> None:
    model = convnet()
    for layer in (model[0], model[1]):
        layer.requires_grad_(False)
    model[1].running_mean.fill_(0.1)
    learner = make(method, model)
    frozen = {k: v.clone() for k, v in model.state_dict().items() if k[0] in "01"}
    for x, y in images(3, [0, 1]):
        learner.learn(x, y)
    for name, before in frozen.items():  # BatchNorm's statistics too
        assert torch.equal(model.state_dict()[name], before), name
    if method == "ocar":
        assert set(learner._transform.curvature.blocks) == {"3", "6"}


def test_a_backbone_with_a_head_of_another_name() -> None:
    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(8, 3)
            self.body = nn.Linear(6, 8)

        def forward(self, x):
            return self.classifier(self.body(x).relu())

    with pytest.raises(
        ModelError, match=r"must return shape \(n, 8\), the outputs of layer 'body'"
    ):
        ocar.ER(seeded(Backbone), lr=0.1).learn(*next(vectors(1, [0, 1])))
    learner = ocar.ER(seeded(Backbone), lr=0.1, head="classifier")
    for x, y in vectors(3, [0, 1, 2, 3, 4]):
        learner.learn(x, y)
    assert learner.model.classifier.out_features == 6


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Flatten(), "Flatten has no parameter that requires a gradient"),
        (nn.Conv2d(1, 2, 3), "Conv2d has no nn.Linear layer. An output layer of that kind is"),
        (nn.Linear(3, 2).requires_grad_(False), "has no parameter that requires a gradient"),
    ],
)
def test_models_that_cannot_learn_are_refused(model: nn.Module, message: str) -> None:
    for construct in (
        lambda: ocar.ER(model, lr=0.1),
        lambda: ocar.OCAR(model, lr=0.1, tau_step=0, ema=1),
    ):
        with pytest.raises(ModelError, match=message):
            construct()


def test_the_head_doubles_and_keeps_what_it_has() -> None:
    model = mlp(units=2)
    parameter = model[2].weight
    first = parameter.detach().clone()
    learner = ocar.ER(model, lr=1e-9)
    learner.learn(*next(vectors(1, [0, 1, 2, 3, 4], size=40)))
    assert model[2].out_features == 8
    assert model[2].weight is parameter  # the same object, enlarged
    assert_close(parameter[:2], first, atol=1e-6, rtol=0)
    assert parameter[2:].abs().max() <= 1 / 8**0.5


# --- bad input -----------------------------------------------------------------------------------

GOOD_X, GOOD_Y = next(vectors(1, [0, 1, 2]))


def with_value(value: float) -> torch.Tensor:
    x = GOOD_X.clone()
    x[3, 2] = value
    return x


@EVERY_METHOD
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (with_value(float("nan")), GOOD_Y, r"x must be finite; 1 of 10 samples hold NaN or Inf"),
        (with_value(float("inf")), GOOD_Y, r"x must be finite; 1 of 10 samples hold NaN or Inf"),
        (GOOD_X, GOOD_Y - 1, r"Labels must be at least 0; given -1"),
        (GOOD_X, GOOD_Y.float(), r"y must be integer labels of shape \(n,\); given torch.float32"),
        (GOOD_X, GOOD_Y.bool(), r"y must be integer labels of shape \(n,\); given torch.bool"),
        (GOOD_X, GOOD_Y[:9], r"one entry for each of 10 samples; given \(9,\)"),
        (GOOD_X, GOOD_Y.tolist(), r"one entry for each of 10 samples; given list"),
        (GOOD_X, GOOD_Y[:, None], r"y must be integer labels of shape \(n,\)"),
        (GOOD_X[:, :5], GOOD_Y, r"shape \(5,\)|cannot take samples|given \(5,\)"),
        (GOOD_X[:0], GOOD_Y[:0], r"The batch is empty"),
        (GOOD_X.long(), GOOD_Y, r"x must be uint8 or floating point; given torch.int64"),
        (GOOD_X[0], GOOD_Y, r"x must be a tensor \(n, ...\) of samples; given \(6,\)"),
        (GOOD_X.tolist(), GOOD_Y, r"x must be a tensor \(n, ...\) of samples; given list"),
    ],
)
def test_bad_input_is_refused_and_leaves_everything_as_it_was(
    method, started, x, y, message
) -> None:
    learner = make(method, mlp(units=2))
    if started:
        learner.learn(GOOD_X, GOOD_Y)
    before = everything(learner)
    for call in (learner.learn, learner.remember):
        with pytest.raises(InputError, match=message):
            call(x, y)
        assert_same(everything(learner), before)
    learner.learn(GOOD_X, GOOD_Y)  # and it works on


def test_predict_refuses_what_was_not_learned() -> None:
    learner = make("er", mlp())
    learner.learn(GOOD_X, GOOD_Y)
    with pytest.raises(
        InputError, match=r"shape \(6,\) and torch.float32, as before; given \(5,\)"
    ):
        learner.predict(GOOD_X[:, :5])
    with pytest.raises(InputError, match="x must be finite"):
        learner.predict(with_value(float("nan")))


# --- saving --------------------------------------------------------------------------------------


@EVERY_METHOD
@pytest.mark.parametrize("prediction", ["plain", "average"])
def test_a_restored_learner_goes_on_to_the_bit(
    method: str, prediction: str, tmp_path: Path
) -> None:
    settings = {
        "prediction": prediction,
        "normalize": ocar.Normalize(mean=(0.4,), std=(0.3,)),
        "augment": ocar.CropFlip(padding=1),
        "seed": 3,
    }
    learner = make(method, convnet(units=2), **settings)
    for i, (x, y) in enumerate(images(12, [0, 1, 2, 3])):
        if i == 5:
            learner.save(tmp_path / "ckpt")
            restored = ocar.load(tmp_path / "ckpt", convnet(units=2))
            assert_same(everything(restored), everything(learner))
            assert repr(restored) == repr(learner)
        learner.learn(x, y)
        if i >= 5:
            restored.learn(x, y)
    assert_same(everything(restored), everything(learner))
    assert torch.equal(restored.predict(x), learner.predict(x))


def test_a_function_of_the_users_must_be_given_again(tmp_path: Path) -> None:
    def halve(x):
        return x.float() / 2

    learner = make("er", mlp(), normalize=halve)
    learner.learn(GOOD_X, GOOD_Y)
    learner.save(tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"saved with normalize=<function .*halve.*Give it"):
        ocar.load(tmp_path / "ckpt", mlp())
    restored = ocar.load(tmp_path / "ckpt", mlp(), normalize=halve)
    assert torch.equal(restored.predict(GOOD_X), learner.predict(GOOD_X))


@EVERY_METHOD
def test_a_checkpoint_of_another_model_is_refused(method: str, tmp_path: Path) -> None:
    learner = make(method, mlp(units=2))
    learner.learn(GOOD_X, GOOD_Y)
    learner.save(tmp_path / "ckpt")
    other = seeded(lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)))
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"of another model: '0.weight' has shape \(8, 6\)"):
        ocar.load(tmp_path / "ckpt", other)
    assert_same(other.state_dict(), before)
    with pytest.raises(CheckpointError, match="of another model: missing"):
        ocar.load(tmp_path / "ckpt", seeded(lambda: nn.Sequential(nn.Linear(6, 2))))


# --- names ---------------------------------------------------------------------------------------


def test_make_learner_says_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match=r"Unknown method 'sgd'. There are er, ocar\."):
        ocar.make_learner("sgd", mlp(), lr=0.1)
    with pytest.raises(
        ConfigError, match=r"ERSettings has no setting tau_step\. It has lr, memory"
    ):
        ocar.make_learner("er", mlp(), lr=0.1, tau_step=1.0)
    with pytest.raises(ConfigError, match=r"OCARSettings needs a value for 'tau_step' and 'ema'"):
        ocar.make_learner("ocar", mlp(), lr=0.1)
    with pytest.raises(ConfigError, match=r"Unknown preset 'cifar'\. There are .*split-mnist"):
        ocar.make_learner("er", mlp(), preset="cifar")


def test_a_transform_goes_with_another_methods_objective() -> None:
    learner = ocar.make_learner("er", mlp(), transform="ocar", lr=0.02, tau_step=1e-6, ema=0.2)
    assert repr(learner) == repr(ocar.OCAR(mlp(), lr=0.02, tau_step=1e-6, ema=0.2))


def test_presets_hold_the_protocols_numbers() -> None:
    settings = preset_settings("split-cifar100", "ocar")
    assert settings["lr"] == 7.03388e-4
    assert settings["tau_step"] == 3.67164e-8
    assert settings["ema"] == 0.138513
    assert settings["n_new"] == 5
    assert settings["memory"] == 2000
    assert settings["passes"] == 3
    assert preset_settings("split-cifar100", "er")["lr"] == 0.0598729
    assert PRESETS["split-tinyimagenet"]["ocar"]["n_new"] == 10


def test_repr_shows_every_setting() -> None:
    text = repr(ocar.OCAR(mlp(), lr=0.1, tau_step=0.0, ema=0.5))
    for part in ("lr=0.1", "memory=2000", "passes=3", "tau_step=0.0", "fisher='sketched(4)'"):
        assert part in text


# --- real data -----------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.skipif("OCAR_DATA" not in os.environ, reason="set OCAR_DATA to the data folder")
@pytest.mark.parametrize("seed", range(3))
def test_the_classes_of_a_stretch_are_estimated_on_split_cifar100(seed: int) -> None:
    """Twenty batches after each boundary the estimate is within 1 of the true 5."""
    stream = ocar.make_stream("split-cifar100", seed=seed)
    transform = ocar.OCAR(mlp(), lr=0.1, tau_step=0.0, ema=0.5)._transform
    since_boundary, task, checked = 0, 0, 0
    for batch in stream:
        if not batch.complete:
            continue
        since_boundary = since_boundary + 1 if batch.task == task else 1
        task = batch.task
        transform.begin(batch.y.tolist(), known=5 * (task + 1))
        if since_boundary >= 20:
            assert abs(transform.classes_in_stretch - 5) <= 1
            checked += 1
    assert checked == 20 * (237 - 19)
