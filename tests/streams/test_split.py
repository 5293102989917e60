"""Class-incremental streams: every sample once, in the right task, and the protocol's numbers."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ocar.datasets import Arrays
from ocar.errors import ConfigError, DataError
from ocar.streams.arrays import TaskArrays
from ocar.streams.split import ClassIncremental


def numbered(labels: list[int], *, test_labels: list[int] | None = None) -> Arrays:
    """Images that carry their own place in the data set in their first two pixels."""

    def images(n: int) -> torch.Tensor:
        places = np.arange(n)
        return torch.from_numpy(
            np.stack([places // 256, places % 256], axis=1).astype(np.uint8).reshape(n, 1, 1, 2)
        )

    test = sorted(set(labels)) * 2 if test_labels is None else test_labels
    return Arrays(
        name="numbered",
        x_train=images(len(labels)),
        y_train=torch.tensor(labels),
        x_test=images(len(test)),
        y_test=torch.tensor(test),
    )


def places(x: torch.Tensor) -> list[int]:
    return (x[:, 0, 0, 0].long() * 256 + x[:, 0, 0, 1]).tolist()


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_every_sample_comes_once_in_its_task(data: st.DataObject) -> None:
    tasks, per_task = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    names = data.draw(
        st.lists(
            st.integers(0, 50), min_size=tasks * per_task, max_size=tasks * per_task, unique=True
        )
    )
    labels = [name for name in names for _ in range(data.draw(st.integers(2, 9)))]
    labels = data.draw(st.permutations(labels))
    arrays = numbered(labels)
    batch_size = data.draw(st.integers(1, 7))
    validation = data.draw(st.sampled_from([0.0, 0.05, 0.3]))
    iid = data.draw(st.booleans())
    seed = data.draw(st.integers(0, 5))
    stream = ClassIncremental(
        arrays, tasks=tasks, batch_size=batch_size, validation=validation, seed=seed, iid=iid
    )
    order = stream.class_order
    assert sorted(order) == sorted(names)
    assert stream.tasks == (1 if iid else tasks)
    batches = list(stream)
    assert [b.index for b in batches] == list(range(len(stream)))
    assert [b.task for b in batches] == sorted(b.task for b in batches)
    seen: list[int] = []
    for task in range(stream.tasks):
        mine = [b for b in batches if b.task == task]
        assert [b.last for b in mine] == [False] * (len(mine) - 1) + [True]
        assert all(len(b.y) == batch_size and b.complete for b in mine[:-1])
        assert mine[-1].complete == (len(mine[-1].y) == batch_size)
        x_val, y_val = stream.validation(task)
        x_test, y_test = stream.test(task)
        size = len(x_val) + sum(len(b.y) for b in mine)
        assert len(x_val) == (max(1, round(validation * size)) if validation else 0)
        in_task = [(i, label) for i, label in enumerate(labels) if order.index(label) in
                   stream.task_classes(task)]  # fmt: skip
        assert size == len(in_task)
        for x, y in [(x_val, y_val), *((b.x, b.y) for b in mine)]:
            assert [order[label] for label in y.tolist()] == [labels[i] for i in places(x)]
            assert all(label in stream.task_classes(task) for label in y.tolist())
            seen += places(x)
        test = [int(label) for label in arrays.y_test]
        assert [order[label] for label in y_test.tolist()] == [test[i] for i in places(x_test)]
        assert len(y_test) == 2 * len(stream.task_classes(task))
    assert sorted(seen) == list(range(len(labels)))


def test_each_task_is_shuffled_by_itself() -> None:
    stream = ClassIncremental(numbered([0, 1] * 40), tasks=2, seed=0)
    orders = []
    for task in range(2):
        mine = torch.cat([stream.validation(task)[0], *(b.x for b in stream if b.task == task)])
        stream.reset()
        orders.append([place // 2 for place in places(mine)])  # of a class, every second sample
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(40))
    assert orders[0] != orders[1]
    assert all(order != sorted(order) for order in orders)


def test_class_orders_are_uniform() -> None:
    arrays = numbered([4, 7, 9] * 4)
    orders = Counter(
        ClassIncremental(arrays, tasks=3, seed=seed).class_order for seed in range(600)
    )
    assert len(orders) == 6
    chi_squared = sum((count - 100) ** 2 / 100 for count in orders.values())
    assert chi_squared < 20.5  # 99.9 % point with 5 degrees of freedom


def test_errors_name_what_is_allowed() -> None:
    arrays = numbered([0, 1, 2, 3] * 10)
    with pytest.raises(
        ConfigError, match=r"Invalid tasks=3. Must divide the 4 classes of numbered"
    ):
        ClassIncremental(arrays, tasks=3)
    with pytest.raises(ConfigError, match=r"Invalid batch_size=0. Must be at least 1"):
        ClassIncremental(arrays, tasks=2, batch_size=0)
    with pytest.raises(ConfigError, match=r"Invalid validation=1.0. Must be in \[0, 1\)"):
        ClassIncremental(arrays, tasks=2, validation=1.0)
    with pytest.raises(ConfigError, match="Leaves nothing of the 1 samples"):
        ClassIncremental(numbered([0, 1]), tasks=2)
    with pytest.raises(DataError, match="test labels that its training data does not have"):
        ClassIncremental(numbered([0, 1] * 5, test_labels=[0, 1, 7]), tasks=2)
    with pytest.raises(DataError, match="no test data for task"):
        ClassIncremental(numbered([0, 1] * 5, test_labels=[0, 0]), tasks=2)


def test_blurry_classes_come_early_and_late() -> None:
    arrays = numbered([0, 1, 2, 3] * 25)
    sharp = ClassIncremental(arrays, tasks=2, seed=1)
    stream = ClassIncremental(arrays, tasks=2, seed=1, blurry=0.2)
    assert stream.class_order == sharp.class_order
    for task in range(2):
        _, y = stream.training(task)
        foreign = [label for label in y.tolist() if label not in stream.task_classes(task)]
        assert len(foreign) == round(0.2 * len(y))
        for part in ("validation", "test"):  # these stay with their task
            mine, others = (getattr(s, part)(task) for s in (stream, sharp))
            assert places(mine[0]) == places(others[0])
            assert set(mine[1].tolist()) <= set(stream.task_classes(task))


def test_validation_data_of_the_users_is_shared_out_by_class() -> None:
    y = torch.arange(20) % 4
    own = TaskArrays(
        x_train=torch.arange(20.0)[:, None],
        y_train=y,
        x_validation=torch.arange(8.0)[:, None] + 100,
        y_validation=torch.arange(8) % 4,
    )
    stream = ClassIncremental(own, tasks=2, seed=1)
    for task in range(2):
        originals = [stream.class_order[label] for label in stream.task_classes(task)]
        x, labels = stream.validation(task)
        assert [stream.class_order[label] for label in labels] == [int(v) % 4 for v in x[:, 0]]
        assert {int(value - 100) % 4 for value in x[:, 0]} == set(originals)
        assert len(stream.training(task)[1]) == 10  # nothing is split off
        assert len(stream.test(task)[1]) == 0
    targets = TaskArrays(x_train=[[1.0]] * 4, y_train=[[0.5]] * 4)
    with pytest.raises(DataError, match=r"has targets of torch\.float32\. Must have labels"):
        ClassIncremental(targets, tasks=2)


def test_classes_of_a_domain_follow_each_other() -> None:
    labels = [0, 1, 2, 3, 4, 5] * 4
    owner = torch.tensor([0, 1, 0, 1, 2, 2])  # of each class
    data = numbered(labels)
    grouped = replace(
        data,
        domain_train=owner[data.y_train],
        domain_test=owner[data.y_test],
        domains=("a", "b", "c"),
    )
    orders = []
    for seed in range(8):
        stream = ClassIncremental(grouped, tasks=6, seed=seed, by_domain=True)
        groups = [int(owner[label]) for label in stream.class_order]
        assert [group for group, _ in itertools.groupby(groups)] == groups[::2]
        orders.append((tuple(groups), stream.class_order))
    assert len({groups for groups, _ in orders}) > 2  # domains in several orders
    assert len({order[:2] for groups, order in orders if groups[0] == 0}) == 2  # classes too
    with pytest.raises(DataError, match="numbered has no domains"):
        ClassIncremental(data, tasks=6, by_domain=True)
    mixed = replace(grouped, domain_train=torch.arange(24) % 5 % 3)
    with pytest.raises(DataError, match="classes of several domains"):
        ClassIncremental(mixed, tasks=6, by_domain=True)
