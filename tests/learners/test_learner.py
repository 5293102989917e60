"""The learner itself; what every method promises is in ``test_every_method.py``."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import accuracy, blobs
from torch import nn
from torch.testing import assert_close
from toys import RAW, assert_same, convnet, everything, images, mlp, seeded, vectors

import ocar
from ocar.errors import CheckpointError, ConfigError, InputError, ModelError
from ocar.methods.objective import Begun
from ocar.methods.presets import PRESETS
from ocar.methods.registry import preset_settings
from ocar.models.modes import train_mode_

SETTINGS = {"er": {"lr": 0.1}, "ocar": {"lr": 0.02, "tau_step": 1e-6, "ema": 0.2}}


def make(method: str, model: nn.Module, **settings) -> ocar.Learner:
    return ocar.make_learner(method, model, **{**SETTINGS[method], "memory": 40, **settings})


# --- learning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SETTINGS)
@pytest.mark.parametrize("kind", ["class-balanced", "reservoir"])
def test_learns_with_either_memory(method: str, kind: str) -> None:
    learner = make(method, mlp(units=2), memory_kind=kind)
    for labels in ([7, 3], [11], [0, 5]):
        for x, y in blobs(20, labels):
            learner.learn(x, y)
    (x, y), *_ = blobs(1, [0, 3, 5, 7, 11], seed=5, size=200)
    logits = learner.predict(x)
    assert logits.shape == (200, 5)
    assert set(learner.classes[:2]) == {7, 3}
    assert learner.classes[2] == 11
    assert accuracy(learner, x, y) > 0.8
    assert learner.batches == 60
    assert learner.steps == 180


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


@pytest.mark.parametrize("method", ["er-ace", "ocar-ace"])
@pytest.mark.parametrize(("replay", "repeats"), [("disjoint", False), ("fresh", True)])
def test_disjoint_draws_repeat_no_sample(
    method: str, replay: str, repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the survey's ER-ACE: its loader goes through the memory without repetition."""
    settings = {"lr": 1e-3, "memory": 30, "replay_batch": 8, "passes": 3, "replay": replay}
    learner = ocar.make_learner(method, convnet(), **settings)
    drawn: list[list[int]] = []
    gather = learner.memory.gather
    monkeypatch.setattr(
        learner.memory, "gather", lambda s, **o: (drawn.append(s.tolist()), gather(s, **o))[1]
    )
    repeated = []
    for x, y in images(8, [0, 1]):
        drawn.clear()
        learner.learn(x, y)
        if len(learner.memory) == 30:
            slots = [slot for one in drawn if len(one) == 8 for slot in one]
            assert len(slots) == 24
            repeated.append(len(set(slots)) < 24)
    assert any(repeated) == repeats
    assert len(repeated) >= 4


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
    learner = make("er", model, prediction="average", average_rate=0.25, passes=1, **RAW)
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
                    average[name][fresh] = learner.slow.values[name][fresh]
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


def test_frozen_layers_get_no_factors() -> None:
    model = convnet()
    for layer in (model[0], model[1]):
        layer.requires_grad_(False)
    learner = make("ocar", model)
    for x, y in images(3, [0, 1]):
        learner.learn(x, y)
    assert set(learner.transform.curvature.layers) == {"3", "6"}
    assert set(learner.transform.curvature.blocks[0].layers) == {"3", "6"}


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


@pytest.mark.parametrize("found_at", ["construction", "first batch"])
def test_a_head_that_cannot_grow_takes_the_labels_that_it_has_units_for(found_at: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(units=3)
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.inner(x) * self.scale

    model = seeded(Scaled)
    if found_at == "construction":
        model = mlp(units=3)
        nn.utils.parametrizations.weight_norm(model[2])
        with pytest.raises(ModelError, match=r"'2' cannot grow.*4 given"):
            make("er", model, classes=range(4))
    learner = make("er", model, classes=[4, 9])
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    learner.learn(x, torch.tensor([4, 9, 5]))  # the third unit was free
    before = everything(learner)
    with pytest.raises(InputError, match=r"no unit for labels 6, 7: 3 of 3 units .* cannot grow"):
        learner.learn(x, torch.tensor([7, 6, 4]))
    assert_same(everything(learner), before)


def test_a_head_is_found_below_large_numbers_of_other_layers() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(6, 3).requires_grad_(False)
            self.base.weight.mul_(1000)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.base(x) + self.head(x)

    make("er", seeded(Sum), classes=range(3)).learn(GOOD_X, GOOD_Y)


def test_regressions_that_return_something_else_are_refused() -> None:
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    settings = {"likelihood": "gaussian", "memory_kind": "reservoir", "lr": 0.1}
    x, _ = GOOD_X, GOOD_Y
    for model, message in (
        (Pair(6, 2), r"shape \(n, outputs\), as a tensor; it returned a tuple"),
        (nn.Sequential(nn.Linear(6, 2), nn.Unflatten(1, (1, 2))), r"it returned \(7, 1, 2\)"),
    ):
        with pytest.raises(ModelError, match=message):
            ocar.ER(model, **settings).learn(x, torch.zeros(10, 2))


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


GOOD_X, GOOD_Y = next(vectors(1, [0, 1, 2]))


# --- saving --------------------------------------------------------------------------------------


def test_a_used_learner_takes_over_the_labels_of_a_state() -> None:
    """Their order too, which decides what each unit of the head stands for."""
    one, other = make("er", mlp()), make("er", mlp())
    fresh = everything(other)
    state = {name: tensor.clone() for name, tensor in other.state()[0].items()}, other.state()[1]
    x = torch.eye(6)
    for learner, y in ((one, [5, 3, 5, 3, 5, 3]), (other, [3, 5, 3, 5, 9, 9])):
        learner.learn(x, torch.tensor(y))
    expected = one.predict(x)
    other.load_state(*one.state())
    assert other.classes == (5, 3)
    assert torch.equal(other.predict(x), expected)
    other.load_state(*state)  # from before its first batch: other samples can come now
    assert_same(everything(other), fresh)
    assert other.classes == ()
    other.learn(x.double(), torch.tensor([3, 5, 3, 5, 9, 9]))


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


def test_settings_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    numbers = {"lr": np.float32(0.1), "passes": np.int64(2), "distill_curvature": np.bool_(True)}
    learner = make("er", mlp(), **numbers, classes=np.arange(4))
    learner.learn(GOOD_X, GOOD_Y)
    learner.save(tmp_path / "ckpt")
    assert ocar.load(tmp_path / "ckpt", mlp()).settings == learner.settings


# --- names ---------------------------------------------------------------------------------------


def test_make_learner_says_what_is_wrong() -> None:
    known = r"There are .*er, er-ace, .*ocar"
    with pytest.raises(ConfigError, match=rf"Unknown method 'sgd'\. Did you mean 'ngd'\? {known}"):
        ocar.make_learner("sgd", mlp(), lr=0.1)
    with pytest.raises(ConfigError, match=rf"Unknown method 'xyz'\. {known}"):
        ocar.make_learner("xyz", mlp(), lr=0.1)
    with pytest.raises(
        ConfigError, match=r"ERSettings has no setting tau_step\. It has lr, memory"
    ):
        ocar.make_learner("er", mlp(), lr=0.1, tau_step=1.0)
    others: dict[str, dict[str, float]] = {"er": {}, "ngd": {"damping": 0.1, "ema": 0.1}}
    for method, settings in others.items():
        with pytest.raises(ConfigError, match=r"ERSettings needs a value for 'lr', the learning"):
            ocar.make_learner(method, mlp(), **settings)
    with pytest.raises(ConfigError, match=r"Unknown preset 'cifar'\. .*There are .*split-mnist"):
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
    for part in ("lr=0.1", "memory=2000", "passes=3", "tau_step=0.0", "fisher='sketched(2)'"):
        assert part in text


# --- real data -----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.data
@pytest.mark.skipif("OCAR_DATA" not in os.environ, reason="set OCAR_DATA to the data folder")
@pytest.mark.parametrize("seed", range(3))
def test_the_classes_of_a_stretch_are_estimated_on_split_cifar100(seed: int) -> None:
    """Twenty batches after each boundary the estimate is within 1 of the true 5."""
    stream = ocar.make_stream("split-cifar100", seed=seed)
    transform = ocar.OCAR(mlp(), lr=0.1, tau_step=0.0, ema=0.5).transform
    since_boundary, task, checked = 0, 0, 0
    for batch in stream:
        if not batch.complete:
            continue
        since_boundary = since_boundary + 1 if batch.task == task else 1
        task = batch.task
        transform.begin(Begun(units=batch.y.tolist(), known=5 * (task + 1), step=0))
        if since_boundary >= 20:
            assert abs(transform.n_new - 5) <= 1
            checked += 1
    assert checked == 20 * (237 - 19)


def test_train_mode_is_set_for_every_layer_but_frozen_norms() -> None:
    frozen = nn.BatchNorm1d(3)
    frozen.weight.requires_grad_(False)
    model = nn.Sequential(nn.Linear(3, 3), frozen, nn.BatchNorm1d(3), nn.Dropout())
    for spoiled in ([], [model], [model[0]], [model[2]], [frozen], [frozen, model[3]]):
        train_mode_(model)
        for module in spoiled:
            module.train(not module.training)
        train_mode_(model)
        assert [m.training for m in model.modules()] == [True, True, False, True, True]
