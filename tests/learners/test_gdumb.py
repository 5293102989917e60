"""GDumb: what it predicts depends on initial weights, memory and seed alone."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from tolerances import EXACT
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from toys import RAW, assert_same, convnet, everything, images, mlp, vectors

import ocar
import ocar_lab
from ocar.augment import scale_to_unit
from ocar.errors import ConfigError, NumericalError
from ocar.evaluate.probe import probe_accuracy
from ocar.methods.gdumb import GDumbSettings
from ocar.methods.ocar import OCARSettings


def make(model: nn.Module, **settings) -> ocar.Learner:
    return ocar.make_learner(
        "gdumb", model, **{"memory": 40, "epochs": 8, "lr": 0.3} | RAW | settings
    )


def train_by_hand(initial: nn.Module, x: Tensor, y: Tensor, *, lr, epochs, units) -> nn.Module:
    """Gradient descent on all samples at once, the rate on half a cosine."""
    model = copy.deepcopy(initial).train()
    for epoch in range(epochs):
        loss = functional.cross_entropy(model(x)[:, :units], y)
        rate = lr * (0.5 + 0.5 * math.cos(math.pi * epoch / epochs))
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter -= rate * grad
    return model.eval()


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
def test_a_prediction_is_that_of_the_initial_weights_trained_on_the_memory(kind: str) -> None:
    """Where the memory is one batch; the head grows from 2 units to 8, and is asked twice."""
    model = (mlp(units=2) if kind == "mlp" else convnet(units=2)).double()
    learner = make(model)
    stream = vectors if kind == "mlp" else images
    for labels in ([0, 1], [2, 3], [4]):
        for x, y in stream(3, labels):
            x = x.double() if kind == "mlp" else x
            report = learner.learn(x, y)
        assert report.loss == 0
        assert report.classes == len(learner.classes)
        memory = learner.memory.gather(learner.memory.slots)
        inputs = memory.x if kind == "mlp" else scale_to_unit(memory.x).double()
        own = train_by_hand(model, inputs, memory.y, lr=0.3, epochs=8, units=len(learner.classes))
        x_test = x if kind == "mlp" else scale_to_unit(x).double()
        with torch.no_grad():
            expected = own(x_test)[:, : len(learner.classes)]
        assert_close(learner.predict(x), expected, **EXACT)
    assert learner.batches == 9
    assert learner.steps == 0
    assert learner.head.capacity == 8


def test_batches_of_an_epoch_are_disjoint_and_full_and_another_order_each_time() -> None:
    seen: list[Tensor] = []
    learner = make(
        convnet(), memory=23, train_batch=5, epochs=3, augment=lambda x, g: (seen.append(x), x)[1]
    )
    for x, y in images(4, [0, 1]):
        learner.learn(x, y)
    assert not seen  # learning does nothing but remember
    learner.predict(x)
    assert [len(x) for x in seen] == [5] * 4 * 3  # 3 of 23 are left out
    stored = learner.memory.gather(learner.memory.slots).x.flatten(1)
    epochs = [torch.cat(seen[4 * e : 4 * e + 4]).flatten(1) for e in range(3)]
    orders = [[int((stored == x).all(1).nonzero()) for x in epoch] for epoch in epochs]
    assert [len(set(order)) for order in orders] == [20, 20, 20]
    assert orders[0] != orders[1] != orders[2]


def test_samples_are_augmented_afresh_with_a_generator_of_their_own() -> None:
    learner = make(convnet(), augment=ocar.CropFlip(padding=2))
    for x, y in images(4, [0, 1]):
        learner.learn(x, y)
    before = everything(learner)
    plain = make(convnet())
    for x, y in images(4, [0, 1]):
        plain.learn(x, y)
    assert not torch.allclose(learner.predict(x), plain.predict(x))
    assert_same(everything(learner), before)


def test_training_is_done_once_for_a_memory() -> None:
    calls: list[int] = []
    learner = make(convnet(), epochs=2, augment=lambda x, g: (calls.append(len(x)), x)[1])
    first, second = images(2, [0, 1])
    learner.learn(*first)
    repeated = learner.predict_repeatedly(first[0])
    one = learner.predict(first[0])
    again = repeated(10, lambda outputs: outputs)
    assert torch.equal(one, again)
    assert calls == [10, 10]
    learner.remember(second[0][:3], second[1][:3])
    other = repeated(4, lambda outputs: outputs)
    assert calls == [10, 10, 13, 13]
    assert not torch.equal(other, one[:4])
    assert torch.equal(learner.predict(first[0][:4]), other)
    assert calls == [10, 10, 13, 13]


def test_asking_in_between_changes_nothing() -> None:
    """The theorem of a method that trains from scratch."""
    asked, silent = make(convnet(units=2)), make(convnet(units=2))
    initial = {name: tensor.clone() for name, tensor in asked.model.state_dict().items()}
    for labels in ([0, 1], [2, 3]):
        for x, y in images(3, labels):
            asked.learn(x, y)
            silent.learn(x, y)
            before = everything(asked)
            modes = [module.training for module in asked.model.modules()]
            asked.predict(x)
            assert_same(everything(asked), before)
            assert [module.training for module in asked.model.modules()] == modes
    assert torch.equal(asked.predict(x), silent.predict(x))
    for name, tensor in asked.model.state_dict().items():
        assert torch.equal(tensor[: len(initial[name])] if tensor.ndim else tensor, initial[name])


def test_it_learns_classes_that_arrive_one_after_another() -> None:
    learner = make(mlp(units=2), epochs=60, lr=0.5)
    for labels in ([7, 3], [11], [0, 5]):
        for x, y in vectors(40, labels):
            learner.learn(x, y)
    (x, y), *_ = vectors(1, [0, 3, 5, 7, 11], seed=5, size=200)
    predicted = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
    assert (predicted == y).double().mean() > 0.9
    assert set(learner.memory.class_counts().values()) == {8}


def test_a_first_batch_of_one_class_and_no_batch_at_all() -> None:
    learner = make(convnet(units=1))
    (x, y), *_ = images(1, [4])
    assert learner.predict(x).shape == (10, 0)
    learner.learn(x[:1], y[:1])
    assert learner.predict(x).shape == (10, 1)
    told = make(mlp(), classes=range(3))
    x = next(vectors(1, [0]))[0]
    assert_close(told.predict(x), told.model(x)[:, :3])


def test_frozen_layers_stay() -> None:
    model = convnet()
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    model[1].running_mean.fill_(0.1)
    learner = make(model)
    for x, y in images(3, [0, 1]):
        learner.learn(x, y)
    learner.predict(x)
    for name, tensor in learner.objective._copy.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]) == (name[0] in "01"), name


def test_features_can_be_probed_before_anything_was_predicted() -> None:
    learner = make(mlp(), epochs=60)
    data = list(vectors(6, [0, 1, 2]))
    for x, y in data:
        learner.learn(x, y)
    assert probe_accuracy(learner, data[:5], data[5]) > 0.8


def test_a_training_that_diverges_is_an_error() -> None:
    learner = make(mlp(), lr=1e38)
    for x, y in vectors(2, [0, 1, 2]):
        learner.learn(x, y)
    with pytest.raises(
        NumericalError, match=r"diverged on its memory of 20 samples with lr=1e\+38"
    ):
        learner.predict(x)


def test_every_transform_is_refused() -> None:
    message = "GDumb goes with no gradient transform: .* Use a method that replays"
    with pytest.raises(ConfigError, match=message):
        make(mlp(), transform="ocar", tau_step=0.0, ema=0.5)
    with pytest.raises(ConfigError, match=message):
        ocar.Learner(mlp(), GDumbSettings(), transform=OCARSettings(tau_step=0.0, ema=0.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "Invalid epochs=0. Must be at least 1"),
        ({"train_batch": 0}, "Invalid train_batch=0. Must be at least 1"),
        ({"prediction": "average"}, "'plain': GDumb has no weights to average"),
        ({"likelihood": "gaussian", "memory_kind": "reservoir"}, "GDumb balances classes"),
    ],
)
def test_wrong_settings_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make(mlp(), **settings)


def test_a_run_evaluates_after_each_task_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    common = {"benchmark": "split-digits", "max_tasks": 2, "device": "cpu", "threads": 1}
    config = ocar_lab.RunConfig(method="gdumb", settings={"epochs": 2}, probe=False, **common)
    run = ocar_lab.run(config, out=tmp_path)
    assert [event.task for event in run.history] == [0, 1]
    assert config.identity()["every"] == "task"
    assert config.changed() == {"epochs": 2, "max_tasks": 2}
    often = ocar_lab.RunConfig(method="gdumb", every=9, **common)
    assert often.identity()["every"] == 9
    assert often.changed() == {"max_tasks": 2, "every": 9}
    assert ocar_lab.RunConfig(method="er", **common).identity()["every"] == 1
    assert ocar_lab.RunConfig(method="er", every=1, **common).changed() == {"max_tasks": 2}
