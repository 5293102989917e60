"""The published splits: the paper's class orders and validation samples, replayed by hand.

The replay goes on to the first two losses of ER in the logs that the survey published
(AlbinSou/ocl_survey, results/er_split_cifar100_20_2000/SEED/logs.json). They depend on every number
drawn before: one other permutation of samples gives other losses.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from ocar.datasets import Arrays, load_cifar100
from ocar.errors import ConfigError
from ocar.models.resnet import SlimResNet18
from ocar.streams.benchmarks import BENCHMARKS, CIFAR100, get_benchmark, make_stream, stream_over
from ocar.streams.split import ClassIncremental
from ocar_lab.published import SPLITS

LOSSES = {
    0: (1.9439376592636108, 1.4467761516571045),
    1: (1.2009494304656982, 1.2368327379226685),
    2: (1.9362846612930298, 1.5082422494888306),
    3: (1.8092317581176758, 1.239900827407837),
    4: (1.397235631942749, 1.3235846757888794),
}
"""The first two losses of each published run of ER, by seed."""

LR = 0.0598728574654861


def replay(y: Tensor, *, seed: int, tasks: int) -> tuple[list[int], list[Tensor], list[Tensor]]:
    """Class order, and rows of training and validation data of each task, by the global state."""
    torch.manual_seed(seed)
    classes = len(y.unique())
    order = torch.randperm(classes).tolist()
    train, validation = [], []
    for task in range(tasks):
        mine = order[task * classes // tasks : (task + 1) * classes // tasks]
        rows = torch.cat([(y == label).nonzero().flatten() for label in set(mine)])
        rows = rows[torch.randperm(len(rows))]
        left = len(rows) - int(0.05 * len(rows))
        train.append(rows[:left])
        validation.append(rows[left:])
    return order, train, validation


def numbered(y: Tensor) -> Arrays:
    """Data whose samples are their own numbers."""
    x = torch.arange(len(y))[:, None]
    return Arrays(name="numbered", x_train=x, y_train=y, x_test=x, y_test=y)


@pytest.mark.parametrize(("classes", "tasks"), [(100, 20), (200, 20), (100, 1)])
@pytest.mark.parametrize("seed", [0, 4, 11])
def test_class_order_and_validation_data_are_those_of_the_replay(
    classes: int, tasks: int, seed: int
) -> None:
    places = torch.randperm(40 * classes, generator=torch.Generator().manual_seed(1))
    y = torch.arange(classes).repeat(40)[places]
    with torch.random.fork_rng(devices=[]):
        order, train, validation = replay(y, seed=seed, tasks=tasks)
    before = torch.get_rng_state()
    stream = ClassIncremental(
        numbered(y), tasks=20, iid=tasks == 1, seed=seed, splits="published", validation=0.05
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert stream.class_order == tuple(order)
    for task in range(tasks):
        x, labels = stream.validation(task)
        assert torch.equal(x.flatten(), validation[task])
        assert [order[label] for label in labels] == y[x.flatten()].tolist()
        learned = stream.training(task)[0].flatten()
        assert torch.equal(learned.sort().values, train[task].sort().values)
        assert not torch.equal(learned, train[task])  # the order of the samples is our own
    own = ClassIncremental(numbered(y), tasks=20, iid=tasks == 1, seed=seed)
    assert own.class_order != stream.class_order


def test_a_benchmark_has_published_splits_or_none() -> None:
    published = {name for name, own in BENCHMARKS.items() if own.splits == "published"}
    assert published == set(SPLITS) == {"split-cifar100", "split-tinyimagenet"}
    y = torch.arange(100).repeat(20)
    cifar100 = get_benchmark("split-cifar100")
    usual, named, own = (
        stream_over(numbered(y), cifar100, seed=3, splits=splits).class_order  # type: ignore[attr-defined]
        for splits in (None, "published", "own")
    )
    assert usual == named != own
    with pytest.raises(ConfigError, match="Invalid splits='published' for split-digits"):
        make_stream("split-digits", splits="published")
    with pytest.raises(ConfigError, match="Invalid splits='published' for convex"):
        make_stream("convex", splits="published")
    with pytest.raises(ConfigError, match=r"Invalid splits='other'\. Must be one of 'own'"):
        make_stream("split-digits", splits="other")  # type: ignore[arg-type]


def augmented(image: Tensor) -> Tensor:
    """A random crop with 4 pixels of padding, then a flip, as torchvision draws them."""
    top, left = (int(torch.randint(0, 9, (1,))) for _ in range(2))
    image = pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
    return image.flip(-1) if torch.rand(1) < 0.5 else image


def first_losses(arrays: Arrays, order: list[int], train: Tensor) -> list[float]:
    """The first two losses of ER; the global state is that after the splits."""
    model, first = SlimResNet18(classes=1), nn.Linear(160, 1)
    rows = train[torch.randperm(len(train))][:10]
    y = torch.tensor([order.index(label) for label in arrays.y_train[rows].tolist()])
    model.head = nn.Linear(160, int(y.max()) + 1)  # the head grew from one unit
    with torch.no_grad():
        model.head.weight[:1], model.head.bias[:1] = first.weight, first.bias
    seen = torch.isin(torch.arange(len(model.head.bias)), y)
    mean, std = (torch.tensor(v)[:, None, None] for v in (CIFAR100.mean, CIFAR100.std))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=LR), []
    for _ in range(2):
        seeds = [int(torch.empty((), dtype=torch.int64).random_()) for _ in range(2)]
        # The second of the data loader's two numbers seeds the order of the batch.
        places = torch.randperm(10, generator=torch.Generator().manual_seed(seeds[1]))
        x = torch.stack([augmented(arrays.x_train[row]) for row in rows[places]])
        logits = model((x / 255 - mean) / std).masked_fill(~seen, -1000)
        loss = cross_entropy(logits, y[places])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


@pytest.mark.data
def test_the_first_losses_of_the_published_logs_come_out() -> None:
    root = Path(os.environ.get("OCAR_DATA", ""))
    if not (root / "cifar-100-python" / "train").exists():
        pytest.skip("needs cifar-100-python under the folder that OCAR_DATA names")
    arrays = load_cifar100(root)
    for seed, published in LOSSES.items():
        with torch.random.fork_rng(devices=[]):
            order, train, validation = replay(arrays.y_train, seed=seed, tasks=20)
            found = first_losses(arrays, order, train[0])
            assert found == pytest.approx(published, rel=1e-5)
            replay(arrays.y_train, seed=seed, tasks=20)
            others = first_losses(arrays, order, train[0].roll(1))
            assert others != pytest.approx(published, rel=1e-2)
        benchmark = get_benchmark("split-cifar100")
        stream = stream_over(numbered(arrays.y_train), benchmark, seed=seed)
        assert isinstance(stream, ClassIncremental)
        assert stream.class_order == tuple(order)
        for task, held_out in enumerate(validation):
            assert torch.equal(stream.validation(task)[0].flatten(), held_out)
