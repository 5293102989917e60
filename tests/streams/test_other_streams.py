"""What is special about each stream; what they share is in ``test_every_stream``."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ocar.datasets import Arrays
from ocar.errors import ConfigError, DataError, InputError
from ocar.streams import ArrayStream, ConvexStream, DomainIncremental, IterableStream, TaskArrays
from ocar.streams.indexed import Samples, Source

# --- domains ---


def domain_arrays(*, test_domains: tuple[int, ...] = (0, 1, 2)) -> Arrays:
    """Sample i has value i, label i mod 5 and domain i mod 3."""
    n, m = 60, 12
    return Arrays(
        name="numbered",
        x_train=torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1),
        y_train=torch.arange(n) % 5,
        x_test=torch.arange(m, dtype=torch.uint8).view(m, 1, 1, 1),
        y_test=torch.arange(m) % 5,
        domain_train=torch.arange(n) % 3,
        domain_test=torch.tensor([test_domains[i % len(test_domains)] for i in range(m)]),
        domains=("zero", "one", "two"),
    )


def numbers(x: torch.Tensor) -> list[int]:
    return x.flatten().tolist()


def test_each_task_is_a_domain_in_the_given_order() -> None:
    order = ("two", "zero", "one")
    stream = DomainIncremental(domain_arrays(), order=order, seed=2)
    assert stream.domains == order
    assert stream.classes == 5
    for task, domain in enumerate((2, 0, 1)):
        x, y = stream.training(task)
        held_out, _ = stream.validation(task)
        assert sorted(numbers(x) + numbers(held_out)) == list(range(domain, 60, 3))
        assert numbers(x) != sorted(numbers(x))
        assert y.tolist() == [sample % 5 for sample in numbers(x)]  # labels as they are
        assert len(held_out) == 1
        x, y = stream.test(task)
        assert numbers(x) == list(range(domain, 12, 3))
        assert y.tolist() == [sample % 5 for sample in numbers(x)]


def test_all_domains_in_one_task() -> None:
    stream = DomainIncremental(domain_arrays(), iid=True)
    assert stream.tasks == 1
    held_out = numbers(stream.validation(0)[0])
    assert len(held_out) == 3
    assert sorted(numbers(stream.training(0)[0]) + held_out) == list(range(60))
    assert sorted(numbers(stream.test(0)[0])) == list(range(12))


def test_a_fixed_split_leaves_the_order_to_the_seed() -> None:
    def make(seed: int, split_seed: int | None) -> DomainIncremental:
        return DomainIncremental(domain_arrays(), seed=seed, split_seed=split_seed, validation=0.25)

    def split(stream: DomainIncremental) -> list[list[int]]:
        return [sorted(numbers(stream.validation(task)[0])) for task in range(3)]

    assert split(make(0, 7)) == split(make(1, 7)) != split(make(0, 8))
    assert split(make(0, None)) != split(make(1, None))
    first, second = (numbers(make(seed, 7).training(0)[0]) for seed in (0, 1))
    assert sorted(first) == sorted(second)
    assert first != second


def test_wrong_domains_are_refused() -> None:
    with pytest.raises(ConfigError, match="Must be the domains of numbered, each once: zero, one"):
        DomainIncremental(domain_arrays(), order=("zero", "one"))
    with pytest.raises(DataError, match="numbered has no test data in domain two"):
        DomainIncremental(domain_arrays(test_domains=(0, 1)))
    plain = domain_arrays()
    without = Arrays(
        name="plain",
        x_train=plain.x_train,
        y_train=plain.y_train,
        x_test=plain.x_test,
        y_test=plain.y_test,
    )
    with pytest.raises(DataError, match="plain has no domains"):
        DomainIncremental(without)


# --- a user's own arrays ---


def test_numpy_arrays_and_any_integer_labels() -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12, dtype=np.int16)
    stream = ArrayStream([TaskArrays(x_train=x, y_train=y)], shuffle=False, validation=0.25)
    held_out, labels = stream.validation(0)
    assert labels.dtype == torch.int64
    assert len(labels) == 3
    given, given_labels = stream.training(0)
    assert given_labels.tolist() == sorted(set(range(12)) - set(labels.tolist()))  # in order
    assert torch.equal(given[:, 0], 2.0 * given_labels)
    assert torch.equal(held_out[:, 0], 2.0 * labels)
    assert len(stream.test(0)[1]) == 0


def test_validation_data_of_the_users_is_not_split_off() -> None:
    x, y = torch.arange(10.0)[:, None], torch.arange(10) % 2
    with_own = TaskArrays(x_train=x, y_train=y, x_validation=-x[:3], y_validation=y[:3])
    without = TaskArrays(x_train=x, y_train=y)
    stream = ArrayStream([with_own, without], validation=0.2)
    assert torch.equal(stream.validation(0)[0], -x[:3])
    assert (len(stream.training(0)[1]), len(stream.training(1)[1])) == (10, 8)
    with pytest.raises(ConfigError, match="Task 1 has no validation data, others have"):
        ArrayStream([with_own, without], iid=True)
    together = ArrayStream([with_own, with_own], iid=True)
    assert (len(together.training(0)[1]), len(together.validation(0)[1])) == (20, 6)


def test_a_view_is_shown_in_all_parts() -> None:
    x, y = torch.arange(10.0)[:, None], torch.arange(10) % 2

    def task(factor: float) -> TaskArrays:
        return TaskArrays(
            x_train=x, y_train=y, x_test=x[:2], y_test=y[:2], view=lambda part: factor * part
        )

    stream = ArrayStream([task(1.0), task(-1.0)], validation=0.2)
    for part in (stream.training, stream.validation):
        assert bool((part(0)[0] >= 0).all())
        assert bool((part(1)[0] <= 0).all())
        assert bool((part(1)[0] < 0).any())
    assert stream.test(1)[0].tolist() == [[0.0], [-1.0]]


def test_samples_are_gathered_from_their_sources() -> None:
    sources = [
        Source(x=torch.arange(3.0)[:, None], y=torch.arange(3)),
        Source(x=torch.arange(2.0)[:, None], y=torch.arange(2), view=lambda x: x + 100),
        Source(x=torch.arange(4.0)[:, None] + 200, y=torch.arange(4)),
    ]
    samples = Samples(sources)
    flat = [0.0, 1, 2, 100, 101, 200, 201, 202, 203]
    assert [samples.rows_of(i).tolist() for i in range(3)] == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    for rows in ([8, 0, 3, 4, 1, 1], [4, 3], [5], []):
        x, y = samples.take(torch.tensor(rows, dtype=torch.int64))
        assert x.flatten().tolist() == [flat[row] for row in rows]
        assert y.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3][row] for row in rows]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x_train": [1.0], "y_train": [0]}, r"x is torch.float32 of shape \(1,\)"),
        ({"x_train": [[1j]], "y_train": [0]}, "x is torch.complex64"),
        ({"x_train": torch.zeros(0, 2), "y_train": torch.zeros(0).long()}, "with n > 0"),
        ({"x_train": [[1.0]], "y_train": [0, 1]}, "Must start with 1, as x"),
        ({"x_train": [[1.0]], "y_train": [0.5]}, r"Regression targets must be \(n, outputs\)"),
        ({"x_train": [[1.0]], "y_train": [[0]]}, r"Labels must be integers \(n,\)"),
        ({"x_train": [[1.0]], "y_train": [0], "x_test": [[1.0]]}, "must both be given, or none"),
    ],
)
def test_wrong_arrays_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        TaskArrays(**given)  # type: ignore[arg-type]


def test_tasks_must_fit_together() -> None:
    one = TaskArrays(x_train=[[1.0, 2.0]] * 4, y_train=[0, 1, 0, 1])
    for other in (
        TaskArrays(x_train=[[1.0]] * 4, y_train=[0, 1, 0, 1]),
        TaskArrays(x_train=[[1.0, 2.0]] * 4, y_train=[[0.5]] * 4),
        TaskArrays(x_train=torch.zeros(4, 2, dtype=torch.uint8), y_train=[0, 1, 0, 1]),
        TaskArrays(
            x_train=[[1.0, 2.0]] * 4, y_train=[0, 1, 0, 1], x_test=[[1.0]] * 4, y_test=[0] * 4
        ),
    ):
        with pytest.raises(DataError, match="Must be the same in all tasks"):
            ArrayStream([one, other])
    with pytest.raises(ConfigError, match="at least one task"):
        ArrayStream([])


# --- convex ---


def test_convex_is_the_papers() -> None:
    stream = ConvexStream()
    assert (stream.tasks, len(stream)) == (10, 1000)
    batch = next(iter(stream))
    assert (batch.x.shape, batch.y.shape) == ((10, 10), (10, 1))
    assert batch.x.dtype == batch.y.dtype == torch.float32
    assert all(len(stream.training(task)[1]) == 1000 for task in range(10))
    assert all(len(stream.validation(task)[1]) == 0 for task in range(10))


def test_convex_tasks_have_their_own_inputs_and_weights() -> None:
    stream = ConvexStream(noise=0.1)
    means, covariances = [], []
    for task in range(stream.tasks):
        x, y = (part.double() for part in stream.training(task))
        found = torch.linalg.lstsq(x, y).solution[:, 0]
        torch.testing.assert_close(found, stream.weights[task].double(), rtol=0, atol=0.05)
        residual = y[:, 0] - x @ found
        assert float(residual.std()) == pytest.approx(0.1, rel=0.15)
        means.append(x.mean(dim=0))
        covariances.append(x.T.cov())
    for i in range(stream.tasks):
        for j in range(i):
            assert float((means[i] - means[j]).norm()) > 1
            assert float((covariances[i] - covariances[j]).norm()) > 1
            assert float((stream.weights[i] - stream.weights[j]).norm()) > 0.3
        off_diagonal = covariances[i] - covariances[i].diag().diag()
        assert float(off_diagonal.abs().max()) > 0.2  # not an independent normal a coordinate


def test_convex_data_are_the_same_for_every_seed() -> None:
    def rows(**seeds: int) -> list[float]:
        return ConvexStream(tasks=2, samples=30, **seeds).training(1)[0][:, 0].tolist()

    assert sorted(rows(seed=0)) == sorted(rows(seed=1))
    assert rows(seed=0) != rows(seed=1)
    assert sorted(rows(data_seed=1)) != sorted(rows(data_seed=0))
    with pytest.raises(ConfigError, match="Invalid tasks=0"):
        ConvexStream(tasks=0)


# --- iterables ---


def pairs(n: int) -> list[tuple[list[list[float]], list[int]]]:
    return [([[float(i)], [i + 0.5]], [i % 2, 1]) for i in range(n)]


def test_batches_may_be_anything_like_tensors() -> None:
    stream = IterableStream(pairs(3))
    batches = list(stream)
    assert [batch.x.tolist() for batch in batches] == [pair[0] for pair in pairs(3)]
    assert all(batch.y.dtype == torch.int64 and batch.complete for batch in batches)
    assert operator.length_hint(IterableStream(pairs(3), pairs(2))) == 5
    assert operator.length_hint(IterableStream(iter(pairs(3)), (pair for pair in pairs(1)))) == 0


def test_one_batch_is_read_ahead_and_no_more() -> None:
    asked: list[int] = []

    def endless() -> Iterator[tuple[list[list[float]], list[int]]]:
        for i in range(10**9):
            asked.append(i)
            yield [[float(i)]], [0]

    stream = IterableStream(endless())
    for batch in stream:
        assert len(asked) == batch.index + 2
        if batch.index == 3:
            break
    assert [batch.index for batch, _ in zip(stream, range(3), strict=False)] == [4, 5, 6]


def test_a_generator_is_gone_through_once() -> None:
    stream = IterableStream(pair for pair in pairs(4))
    assert len(list(stream)) == 4
    stream.reset()
    with pytest.raises(InputError, match="Task 0 is an exhausted iterator"):
        next(iter(stream))
    fresh = IterableStream(pair for pair in pairs(4))
    fresh.load_state_dict({"position": 3})
    assert [batch.index for batch in fresh] == [3]


def test_wrong_iterables_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one task"):
        IterableStream()
    with pytest.raises(ConfigError, match="Invalid batch_size=0"):
        IterableStream(pairs(1), batch_size=0)
    with pytest.raises(ConfigError, match=r"Invalid test data of 2 tasks\. Must be of all 1"):
        IterableStream(pairs(1), test=[([[1.0]], [0])] * 2)
    with pytest.raises(InputError, match="Task 1 has no batches"):
        list(IterableStream(pairs(1), []))
    with pytest.raises(InputError, match="Must be equally long"):
        list(IterableStream([([[1.0]], [0, 1])]))
