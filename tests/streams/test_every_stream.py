"""What every stream must do, whatever it is made of."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ocar.datasets import Arrays
from ocar.errors import CheckpointError, ConfigError
from ocar.evaluate import evaluate
from ocar.events import Evaluated, Finished
from ocar.streams import (
    ArrayStream,
    ClassIncremental,
    ConvexStream,
    DomainIncremental,
    IterableStream,
    StreamBatch,
    TaskArrays,
    TaskStream,
)
from ocar.streams.views import Permute, Rotate, in_views

BATCH = 4


def arrays(*, n: int = 61, test: int = 18, domains: int = 3) -> Arrays:
    """Images that are all different, of six classes, in some domains."""
    generator = torch.Generator().manual_seed(5)

    def images(count: int) -> torch.Tensor:
        return torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)

    return Arrays(
        name="made",
        x_train=images(n),
        y_train=torch.arange(n) % 6,
        x_test=images(test),
        y_test=torch.arange(test) % 6,
        domain_train=torch.arange(n) // 2 % domains,
        domain_test=torch.arange(test) % domains,
        domains=tuple("abcdefgh"[:domains]),
    )


def own_tasks(*, targets: bool = False) -> list[TaskArrays]:
    """Tasks of float samples, of different sizes; the second brings validation data."""
    generator = torch.Generator().manual_seed(6)

    def part(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 3, generator=generator)
        y = torch.randn(n, 2, generator=generator) if targets else torch.arange(n) % 3
        return x, y

    tasks = []
    for name, n in (("one", 23), ("two", 16), ("three", 30)):
        (x, y), (x_test, y_test) = part(n), part(7)
        tasks.append(TaskArrays(name=name, x_train=x, y_train=y, x_test=x_test, y_test=y_test))
    x, y = part(5)
    tasks[1] = replace(tasks[1], x_validation=x, y_validation=y)
    return tasks


def batches_of(task: TaskArrays) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pieces = zip(task.x_train.split(BATCH), task.y_train.split(BATCH), strict=True)
    return list(pieces)


def iterable(seed: int, *, loaders: bool = False) -> IterableStream:
    tasks = own_tasks()
    held_out = [(task.x_test, task.y_test) for task in tasks]
    parts = [
        DataLoader(
            TensorDataset(task.x_train, task.y_train),
            batch_size=BATCH,
            generator=torch.Generator(),  # else it draws from the global one
        )
        if loaders
        else batches_of(task)
        for task in tasks
    ]
    return IterableStream(*parts, batch_size=BATCH, validation=held_out, test=held_out)


def views(seed: int, make: Callable[[int], Permute | Rotate]) -> ArrayStream:
    tasks = in_views(arrays(), [make(task) for task in range(3)], seed=seed)
    return ArrayStream(tasks, batch_size=BATCH, seed=seed)


@dataclass(frozen=True)
class Case:
    make: Callable[[int], TaskStream]
    """From the seed to the stream."""

    tasks: int = 3
    seeded: bool = True
    """Whether another seed makes another stream."""

    held_out: bool = True
    """Whether it has validation and test data."""


def split(seed: int, **options: object) -> ClassIncremental:
    return ClassIncremental(
        arrays(),
        **{"tasks": 3, "batch_size": BATCH, "validation": 0.2, "seed": seed, **options},  # type: ignore[arg-type]
    )


def domain(seed: int, **options: object) -> DomainIncremental:
    return DomainIncremental(arrays(), batch_size=BATCH, seed=seed, **options)  # type: ignore[arg-type]


def own(seed: int, **options: object) -> ArrayStream:
    tasks = own_tasks(targets=bool(options.pop("targets", False)))
    return ArrayStream(tasks, batch_size=BATCH, seed=seed, **options)  # type: ignore[arg-type]


def convex(seed: int, **options: object) -> ConvexStream:
    return ConvexStream(
        tasks=3,
        features=2,
        samples=21,
        batch_size=BATCH,
        seed=seed,
        **options,  # type: ignore[arg-type]
    )


CASES: Mapping[str, Case] = {
    "classes": Case(split),
    "classes, i.i.d.": Case(lambda seed: split(seed, iid=True), tasks=1),
    "classes, blurry": Case(lambda seed: split(seed, blurry=0.3)),
    "classes of float arrays": Case(
        lambda seed: ClassIncremental(own_tasks()[1], tasks=3, batch_size=BATCH, seed=seed)
    ),
    "domains": Case(domain),
    "domains in another order": Case(lambda seed: domain(seed, order=("c", "a", "b"))),
    "domains, fixed split": Case(lambda seed: domain(seed, split_seed=0)),
    "domains, i.i.d.": Case(lambda seed: domain(seed, iid=True), tasks=1),
    "domains, blurry": Case(lambda seed: domain(seed, blurry=0.5)),
    "own arrays": Case(own),
    "own arrays, blurry": Case(lambda seed: own(seed, blurry=0.2)),
    "own arrays, in order": Case(lambda seed: own(seed, shuffle=False, split_seed=0), seeded=False),
    "own regression": Case(lambda seed: own(seed, targets=True)),
    "permuted": Case(lambda seed: views(seed, lambda task: Permute(seed, str(task)))),
    "rotated": Case(lambda seed: views(seed, lambda task: Rotate(60.0 * task))),
    "convex": Case(convex, held_out=False),
    "convex, i.i.d.": Case(lambda seed: convex(seed, iid=True), tasks=1, held_out=False),
    "iterables": Case(iterable, seeded=False),
    "loaders": Case(lambda seed: iterable(seed, loaders=True), seeded=False),
}

every_stream = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def as_plain(batch: StreamBatch) -> tuple[object, ...]:
    rest = (batch.task, batch.index, batch.complete, batch.last)
    return (batch.x.tolist(), batch.y.tolist(), str(batch.x.dtype), str(batch.y.dtype), *rest)


@every_stream
def test_batches_come_in_order(case: Case) -> None:
    stream = case.make(0)
    batches = list(stream)
    assert stream.tasks == case.tasks
    assert [batch.index for batch in batches] == list(range(len(batches)))
    tasks = [batch.task for batch in batches]
    assert tasks == sorted(tasks)
    assert set(tasks) == set(range(case.tasks))
    for task in range(case.tasks):
        mine = [batch for batch in batches if batch.task == task]
        assert [batch.last for batch in mine] == [False] * (len(mine) - 1) + [True]
        assert all(len(batch.x) == len(batch.y) == BATCH for batch in mine[:-1])
        assert all(batch.complete for batch in mine[:-1])
        assert mine[-1].complete == (len(mine[-1].y) == BATCH)
        assert len(mine[-1].y) > 0
    assert {batch.complete for batch in batches} == {True, False}  # else the case says little
    assert len({(batch.x.shape[1:], batch.x.dtype, batch.y.dtype) for batch in batches}) == 1
    assert list(stream) == []


@every_stream
def test_training_is_what_the_batches_give(case: Case) -> None:
    stream = case.make(0)
    batches = list(case.make(0))
    for task in range(case.tasks):
        x, y = stream.training(task)
        mine = [batch for batch in batches if batch.task == task]
        assert torch.equal(x, torch.cat([batch.x for batch in mine]))
        assert torch.equal(y, torch.cat([batch.y for batch in mine]))
    assert stream.state_dict() == {"position": 0}  # looking does not move it


@every_stream
def test_held_out_data(case: Case) -> None:
    stream = case.make(0)
    first = next(iter(case.make(0)))
    learned = {sample for t in range(case.tasks) for sample in as_bytes(stream.training(t)[0])}
    for task in range(case.tasks):
        for x, y in (stream.validation(task), stream.test(task)):
            assert len(x) == len(y)
            assert bool(len(y)) == case.held_out
            if case.held_out:
                assert (x.shape[1:], x.dtype) == (first.x.shape[1:], first.x.dtype)
                assert (y.shape[1:], y.dtype) == (first.y.shape[1:], first.y.dtype)
        assert not learned & set(as_bytes(stream.validation(task)[0]))
        assert not learned & set(as_bytes(stream.test(task)[0]))


def as_bytes(x: torch.Tensor) -> list[bytes]:
    return [sample.numpy().tobytes() for sample in x]


@every_stream
def test_saved_anywhere_it_goes_on_the_same(case: Case) -> None:
    whole = [as_plain(batch) for batch in case.make(0)]
    for stop in range(len(whole) + 1):
        first, second = case.make(0), case.make(0)
        head = [as_plain(batch) for batch in itertools.islice(first, stop)]
        state = json.loads(json.dumps(first.state_dict()))
        second.load_state_dict(state)
        assert state == first.state_dict()
        assert head + [as_plain(batch) for batch in second] == whole
        assert head + [as_plain(batch) for batch in first] == whole  # a loop left and entered again


@every_stream
def test_a_batch_counts_as_seen_once_given(case: Case) -> None:
    stream = case.make(0)
    for batch in stream:
        assert stream.state_dict() == {"position": batch.index + 1}


@every_stream
def test_it_can_go_back(case: Case) -> None:
    stream = case.make(0)
    whole = [as_plain(batch) for batch in stream]
    stream.load_state_dict({"position": 2})
    assert [as_plain(batch) for batch in stream] == whole[2:]
    stream.reset()  # type: ignore[attr-defined]
    assert [as_plain(batch) for batch in stream] == whole


@every_stream
def test_wrong_states_and_tasks_are_refused(case: Case) -> None:
    for state in ({}, {"position": -1}, {"position": 0, "x": 1}, {"position": "1"}):
        with pytest.raises(CheckpointError, match="Invalid stream"):
            case.make(0).load_state_dict(state)  # type: ignore[arg-type]
    stream = case.make(0)

    def go_too_far() -> None:
        stream.load_state_dict({"position": 10_000})
        next(iter(stream))

    with pytest.raises(CheckpointError, match="Invalid stream position=10000"):
        go_too_far()
    for part in (stream.training, stream.validation, stream.test):
        for task in (-1, case.tasks):
            with pytest.raises(ConfigError, match="Invalid task="):
                part(task)


@every_stream
def test_the_seed_decides_and_nothing_else(case: Case) -> None:
    state = torch.get_rng_state()
    first = [as_plain(batch) for batch in case.make(0)]
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(3)
    assert [as_plain(batch) for batch in case.make(0)] == first
    assert ([as_plain(batch) for batch in case.make(1)] != first) == case.seeded


@dataclass(eq=False)
class Report:
    loss: torch.Tensor


class Memorizer:
    """Predicts the label of the nearest sample learned, or the mean of the targets learned."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs  # before it has learned
        self.x = torch.empty(0)
        self.y = torch.empty(0)

    @property
    def classes(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.y.tolist()))) if len(self.y) else ()

    def learn(self, x: torch.Tensor, y: torch.Tensor) -> Report:
        self.x = torch.cat([self.x, x.flatten(1).float()]) if len(self.x) else x.flatten(1).float()
        self.y = torch.cat([self.y, y]) if len(self.y) else y
        return Report(loss=torch.tensor(float(len(self.y))))

    def remember(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.learn(x, y)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        if not len(self.y):
            return torch.zeros(len(x), self.outputs)
        if self.y.is_floating_point():
            return self.y.mean(dim=0).expand(len(x), -1)
        nearest = torch.cdist(x.flatten(1).float(), self.x).argmin(dim=1)
        return (self.y[nearest][:, None] == torch.tensor(self.classes)).float()


def measured(event: Evaluated) -> tuple[object, ...]:
    return (event.index, event.task, event.correct, event.sizes, event.seen, event.l_p, event.l_s)


@every_stream
def test_a_learner_can_be_evaluated_on_it_and_go_on(case: Case) -> None:
    first = next(iter(case.make(0)))
    regression = first.y.is_floating_point()
    outputs = first.y.shape[1] if regression else 0
    whole = list(evaluate(Memorizer(outputs), case.make(0), every=2))
    finished = whole[-1]
    assert isinstance(finished, Finished)
    evaluations = [event for event in whole if isinstance(event, Evaluated)]
    assert evaluations[-1].seen == sum(
        len(case.make(0).training(task)[1]) for task in range(case.tasks)
    )
    assert (finished.summary.acc is None) == regression
    assert (finished.summary.l_s is None) != regression
    for stop in (1, 2, len(evaluations)):
        learner, stream = Memorizer(outputs), case.make(0)
        history: list[Evaluated] = []
        for event in evaluate(learner, stream, every=2):
            if isinstance(event, Evaluated):
                history.append(event)
                if len(history) == stop:
                    break
        again = case.make(0)
        again.load_state_dict(stream.state_dict())
        rest = list(evaluate(learner, again, every=2, history=history))
        got = [*history, *(event for event in rest if isinstance(event, Evaluated))]
        assert [measured(event) for event in got] == [measured(event) for event in evaluations]
        assert isinstance(rest[-1], Finished)
        assert (rest[-1].correct, rest[-1].sizes) == (finished.correct, finished.sizes)
