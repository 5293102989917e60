"""The plugin inside real strategies of Avalanche, against our own learner and our own K-FAC."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ocar
from ocar.errors import InputError, ModelError
from ocar.methods.ocar import OCARSettings

pytestmark = pytest.mark.usefixtures("avalanche", "quiet")

SETTINGS: dict[str, Any] = {"tau_step": 1e-4, "ema": 0.3, "fisher": "exact"}
LR = 0.05


def settings(**values: Any) -> OCARSettings:
    return OCARSettings(**{**SETTINGS, **values})


def data(samples: int, classes: list[int], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.arange(samples) % len(classes)]
    x = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    x[:, 0] += labels
    return x, labels


def experiences(parts: list[tuple[Tensor, Tensor]], *, size: int | None = None) -> list[Any]:
    """Each part as an experience, or cut in online experiences of a size."""
    from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline
    from avalanche.benchmarks.scenarios.online import split_online_stream
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute

    sets = []
    for x, y in parts:
        labels = DataAttribute(y.tolist(), "targets", use_in_getitem=False)
        tasks = DataAttribute([0] * len(y), "targets_task_labels", use_in_getitem=True)
        tensors = torch.utils.data.TensorDataset(x, y)
        sets.append(AvalancheDataset([tensors], data_attributes=[labels, tasks]))
    stream = benchmark_from_datasets(train=sets).train_stream
    if size is not None:
        stream = split_online_stream(stream, experience_size=size, shuffle=False)
    return list(with_classes_timeline(stream))


def net(head: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), head).double()


def strategy_of(model: nn.Module, *plugins: Any, epochs: int = 1, size: int = 5) -> Any:
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.supervised import Naive

    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=size,
        train_epochs=epochs,
        plugins=list(plugins),
        evaluator=EvaluationPlugin(),
    )


def replay_plugin(memory: int, *, new: int, old: int) -> Any:
    from avalanche.training.plugins import ReplayPlugin
    from avalanche.training.storage_policy import ClassBalancedBuffer

    policy = ClassBalancedBuffer(max_size=memory)
    return ReplayPlugin(memory, batch_size=new, batch_size_mem=old, storage_policy=policy)


def plugin(chosen: OCARSettings, **options: Any) -> Any:
    from ocar.integrations.avalanche import OCARPlugin

    return OCARPlugin(chosen, **options)


def recorder() -> Any:
    """A plugin that notes every mini-batch and the weights after its step."""
    from avalanche.training.plugins import SupervisedPlugin

    class Recorder(SupervisedPlugin):
        def __init__(self) -> None:
            super().__init__()
            self.steps: list[dict[str, Any]] = []

        def after_update(self, strategy: Any, **kwargs: Any) -> None:
            self.steps.append(
                {
                    "x": strategy.mb_x.clone(),
                    "y": strategy.mb_y.clone(),
                    "epoch": strategy.clock.train_exp_epochs,
                    "weights": [p.detach().clone() for p in strategy.model.parameters()],
                }
            )

    return Recorder()


@pytest.mark.parametrize("passes", ["first", "every"])
def test_without_replay_it_is_our_learner_on_the_same_stream(passes: Any) -> None:
    from avalanche.models import IncrementalClassifier

    parts = [data(20, [0, 1], 0), data(20, [2, 3], 1), data(20, [4, 5], 2)]
    model = net(IncrementalClassifier(8, initial_out_features=6))
    head = model[2].classifier
    ours = net(nn.Linear(8, 6))
    ours.load_state_dict(
        {
            k.replace("classifier.", ""): v
            for k, v in model.state_dict().items()
            if "active" not in k
        }
    )
    chosen = settings(fisher_passes=passes)
    strategy = strategy_of(model, plugin(chosen, seed=3), epochs=3)
    given = {"passes": 3, "replay_batch": 0, "fisher_passes": passes, "standardize": False}
    learner = ocar.make_learner("ocar", ours, lr=LR, seed=3, **given, **SETTINGS)
    for experience in experiences(parts, size=5):
        strategy.train(experience)
        x, y = (
            torch.stack([row[i] if i == 0 else torch.tensor(row[i]) for row in experience.dataset])
            for i in (0, 1)
        )
        learner.learn(x, y)
    assert strategy.model[2].classifier is head
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-9, atol=1e-11)


def test_replayed_samples_weigh_as_many_times_as_there_are_classes_for_each_new_one() -> None:
    parts = [data(23, [0, 1], 0), data(23, [2, 3], 1), data(23, [4, 5], 2)]
    model, ours = net(nn.Linear(8, 6)), net(nn.Linear(8, 6))
    ours.load_state_dict(model.state_dict())
    seen, chosen = recorder(), settings(n_new=2)
    added = plugin(chosen, seed=1)
    strategy = strategy_of(model, replay_plugin(12, new=5, old=4), added, seen)
    for experience in experiences(parts):
        strategy.train(experience)
    kfac = ocar.KFAC(ours, damping=lambda step: LR + 1e-4 * step, ema=0.3, fisher="exact", seed=1)
    optimizer = torch.optim.SGD(ours.parameters(), lr=LR)
    assert len(seen.steps) == 15
    sizes: list[int] = []
    known: set[int] = set()  # a first batch may have samples of one of the two new classes only
    for index, step in enumerate(seen.steps):
        new = 3 if index % 5 == 4 else 5  # 23 = 4 · 5 + 3
        known.update(step["y"][:new].tolist())
        sizes.append(len(step["y"]) - new)
        weights = torch.ones(len(step["y"]), dtype=torch.float64)
        weights[new:] = len(known) / 2
        optimizer.zero_grad()
        with kfac.record():
            outputs = ours(step["x"])
        kfac.update(outputs, weights=weights)
        nn.functional.cross_entropy(outputs, step["y"]).backward()
        kfac.precondition_()
        optimizer.step()
        for mine, theirs in zip(ours.parameters(), step["weights"], strict=True):
            torch.testing.assert_close(theirs, mine.detach(), rtol=1e-9, atol=1e-11)
    assert sizes == [0] * 5 + [4] * 10
    assert added.report() == pytest.approx({"tau": LR + 15e-4, "replay_weight": 3.0})


def test_a_head_that_grows_keeps_what_was_known_of_the_layers_below() -> None:
    from avalanche.models import IncrementalClassifier

    added = plugin(settings())
    # In single precision: the layer that replaces a smaller one is always made in it.
    strategy = strategy_of(net(IncrementalClassifier(8, initial_out_features=2)).float(), added)
    parts = [data(10, [0, 1], 0), data(10, [2, 3], 1)]
    first, second = experiences([(x.float(), y) for x, y in parts])
    strategy.train(first)
    before = added.transform.curvature.state_dict()
    added.before_training_exp(strategy)
    (blocks,) = added.transform.curvature.blocks
    assert blocks.buffer.average("2.classifier.G").shape == (1, 2, 2)
    strategy.model[2].train()
    strategy.model[2].adaptation(second)
    added.before_training_exp(strategy)
    after = added.transform.curvature.state_dict()
    assert added.transform.curvature.step == int(before["step"]) == 2
    for name in ("averages.0.A", "averages.0.G", "averages.2.classifier.A", "generator"):
        assert torch.equal(before[name], after[name])
    wider = after["averages.2.classifier.G"]
    assert wider.shape == (1, 4, 4)
    assert torch.equal(wider[:, :2, :2], before["averages.2.classifier.G"])
    assert not wider[:, 2:].any()
    strategy.train(second)
    assert added.transform.curvature.step == 4
    assert added.classes == {0, 1, 2, 3}


@pytest.mark.parametrize(("size", "units"), [("classes", 2), ("labels", 4)])
def test_the_head_counts_classes_or_labels(size: Any, units: int) -> None:
    from avalanche.models import IncrementalClassifier

    added = plugin(settings(head_size=size))
    strategy = strategy_of(net(IncrementalClassifier(8, initial_out_features=6)), added)
    strategy.train(experiences([data(10, [0, 3], 0)]))
    (blocks,) = added.transform.curvature.blocks
    assert int(blocks.head.active) == units


def test_what_is_replayed_can_be_said() -> None:
    def last_two(strategy: Any) -> Tensor:
        return torch.arange(len(strategy.mb_y)) >= len(strategy.mb_y) - 2

    asked = plugin(settings(), replayed=last_two)
    strategy = strategy_of(net(nn.Linear(8, 4)), asked)
    (experience,) = experiences([data(80, [0, 1, 2, 3], 0)])
    torch.manual_seed(0)  # Avalanche shuffles by it, and only new samples count
    strategy.train(experience)
    assert asked.classes == {0, 1, 2, 3}
    strange = plugin(settings(), replayed=lambda strategy: torch.zeros(3))
    with pytest.raises(InputError, match="a bool for each of 5 samples; given"):
        strategy_of(net(nn.Linear(8, 4)), strange).train(experience)


def test_a_head_for_each_task_is_refused() -> None:
    from avalanche.models import MultiHeadClassifier

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = MultiHeadClassifier(6)

        def forward(self, x: Tensor) -> Any:
            return self.head(x, 0)

    (experience,) = experiences([data(10, [0, 1], 0)])
    strategy = strategy_of(Net().double(), plugin(settings()))
    strategy.experience = experience
    with pytest.raises(ModelError, match="one output layer for all samples"):
        plugin(settings()).before_training_exp(strategy)


def test_a_model_that_changes_elsewhere_is_refused() -> None:
    added = plugin(settings())
    strategy = strategy_of(net(nn.Linear(8, 2)), added)
    first, second = experiences([data(10, [0, 1], 0), data(10, [0, 1], 1)])
    strategy.train(first)
    strategy.model[0] = nn.Linear(6, 9).double()
    strategy.model[2] = nn.Linear(9, 2).double()
    with pytest.raises(ModelError, match="in other ways than by outputs of '2'"):
        strategy.train(second)


def test_it_raises_the_accuracy_of_replay_on_digits() -> None:
    from avalanche_comparison import whole_run

    plain, with_plugin = (whole_run("split-digits", method, 0) for method in ("er", "ocar"))
    assert with_plugin["acc"] > plain["acc"] + 0.05
    assert with_plugin["aaa"] > plain["aaa"] + 0.05
