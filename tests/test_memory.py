"""Memories against brute-force models, probability theory and interruption."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ocar.errors import CheckpointError, ConfigError, InputError
from ocar.memory import MEMORIES, Batch, ClassBalancedMemory, Memory, ReservoirMemory
from ocar.rng import make_generator

# A chi-square statistic above this quantile fails. The seeds are fixed, so a pass stays a pass.
CHI_SQUARE_LEVEL = 0.999

EVERY_MEMORY = pytest.mark.parametrize("kind", sorted(MEMORIES))

# No deadline: a busy machine is not a failure.
PROPERTY = settings(deadline=None, max_examples=50)

# A stream: batches of labels. Sample i is the i-th label of the whole stream.
STREAMS = st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=12)
CAPACITIES = st.integers(1, 12)


def encode(ids: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
    """An input and an extra that both give away the number of the sample."""
    number = torch.tensor(ids, dtype=torch.int64)
    return torch.stack([number, number**2], dim=1), {"logits": number.double()[:, None] / 7}


def feed(memory: Memory, stream: list[list[int]], *, start: int = 0) -> None:
    for labels in stream:
        x, extras = encode(list(range(start, start + len(labels))))
        memory.add(x, torch.tensor(labels, dtype=torch.int64), extras)
        start += len(labels)


def make(kind: str, capacity: int, *, seed: int = 0) -> Memory:
    return MEMORIES[kind](capacity, extras=("logits",), seed=seed)


def contents(memory: Memory) -> Batch:
    """Everything stored, by slot, read without the memory's generator."""
    return memory.gather(memory._slots)


def stored_ids(memory: Memory) -> list[int]:
    return contents(memory).x[:, 0].tolist() if len(memory) else []


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name


def quota(capacity: int, classes: list[int], label: int) -> int:
    """Deals the slots out one by one to the classes in order of appearance."""
    return Counter(classes[slot % len(classes)] for slot in range(capacity))[label]


def chi_square_limit(freedom: int) -> float:
    """Wilson and Hilferty's approximation of the quantile."""
    z = NormalDist().inv_cdf(CHI_SQUARE_LEVEL)
    variance = 2 / (9 * freedom)
    return freedom * math.pow(1 - variance + z * math.sqrt(variance), 3)


def assert_uniform(counts: list[int], *, kept: int, trials: int) -> None:
    """Each trial kept ``kept`` of ``len(counts)`` items: were all subsets equally likely?"""
    n = len(counts)
    assert sum(counts) == kept * trials
    p = kept / n
    # Inclusion indicators have variance p(1-p) and covariance -p(1-p)/(n-1).
    spread = sum((count - trials * p) ** 2 for count in counts)
    assert spread * (n - 1) / (n * trials * p * (1 - p)) < chi_square_limit(n - 1)


# --- which samples stay -------------------------------------------------------------------------


@EVERY_MEMORY
@PROPERTY
@given(capacity=CAPACITIES, stream=STREAMS, seed=st.integers(0, 99))
def test_slots_hold_genuine_samples(
    kind: str, capacity: int, stream: list[list[int]], seed: int
) -> None:
    memory = make(kind, capacity, seed=seed)
    feed(memory, stream)
    truth = [label for labels in stream for label in labels]
    assert memory.seen == len(truth)
    assert len(memory) <= min(capacity, len(truth))
    ids = stored_ids(memory)
    assert len(ids) == len(set(ids)) == len(memory)
    if ids:
        x, extras = encode(ids)
        batch = contents(memory)
        assert torch.equal(batch.x, x)
        assert batch.y.tolist() == [truth[i] for i in ids]
        assert torch.equal(batch.extras["logits"], extras["logits"])
        assert memory.labels.tolist() == batch.y.tolist()
    assert memory.class_counts() == Counter(truth[i] for i in ids)


@PROPERTY
@given(capacity=CAPACITIES, stream=STREAMS, seed=st.integers(0, 99))
def test_reservoir_is_algorithm_r(capacity: int, stream: list[list[int]], seed: int) -> None:
    memory = make("reservoir", capacity, seed=seed)
    feed(memory, stream)
    generator = make_generator(seed, "memory")
    slots: list[int] = []
    for i in range(sum(map(len, stream))):
        if i < capacity:
            slots.append(i)
            continue
        j = int(torch.rand((), dtype=torch.float64, generator=generator) * (i + 1))
        if j < capacity:
            slots[j] = i
    assert stored_ids(memory) == slots


@PROPERTY
@given(capacity=CAPACITIES, stream=STREAMS, seed=st.integers(0, 99))
def test_balanced_keeps_the_highest_priorities_of_each_class(
    capacity: int, stream: list[list[int]], seed: int
) -> None:
    memory = make("class-balanced", capacity, seed=seed)
    truth = [label for labels in stream for label in labels]
    generator = make_generator(seed, "memory")
    priorities = torch.rand(len(truth), dtype=torch.float64, generator=generator).tolist()
    done: list[list[int]] = []
    for labels in stream:
        feed(memory, [labels], start=sum(map(len, done)))
        done.append(labels)
        seen = [label for labels in done for label in labels]
        classes = list(dict.fromkeys(seen))
        expected: list[int] = []
        for label in classes:
            ids = [i for i, other in enumerate(seen) if other == label]
            share = quota(capacity, classes, label)
            assert memory.class_counts().get(label, 0) == min(len(ids), share)
            expected += sorted(ids, key=lambda i: -priorities[i])[:share]
        assert sorted(stored_ids(memory)) == sorted(expected)


@EVERY_MEMORY
@PROPERTY
@given(capacity=CAPACITIES, labels=st.lists(st.integers(0, 6), max_size=40), size=st.integers(1, 9))
def test_batch_size_does_not_matter(kind: str, capacity: int, labels: list[int], size: int) -> None:
    one_by_one, batched = make(kind, capacity), make(kind, capacity)
    feed(one_by_one, [[label] for label in labels])
    feed(batched, [labels[i : i + size] for i in range(0, len(labels), size)])
    assert sorted(stored_ids(one_by_one)) == sorted(stored_ids(batched))


def test_reservoir_is_uniform() -> None:
    n, kept, trials = 9, 4, 1500
    counts = Counter[int]()
    for seed in range(trials):
        memory = make("reservoir", kept, seed=seed)
        feed(memory, [[0] * 6, [1] * 3])
        counts.update(memory.gather(torch.arange(kept)).x[:, 0].tolist())
    assert_uniform([counts[i] for i in range(n)], kept=kept, trials=trials)


def test_balanced_is_uniform_within_a_class_and_after_shares_shrank() -> None:
    # 10 slots: class 0 has all, then 5 of 10, then 4 of 10 (the remainder goes to the first).
    stream = [[0] * 12, [0, 1] * 8, [1, 0, 2] * 6]
    truth = [label for labels in stream for label in labels]
    kept, trials = {0: 4, 1: 3, 2: 3}, 1000
    counts = Counter[int]()
    for seed in range(trials):
        memory = make("class-balanced", 10, seed=seed)
        feed(memory, stream)
        counts.update(memory.gather(torch.arange(10)).x[:, 0].tolist())
    for label, share in kept.items():
        ids = [i for i, other in enumerate(truth) if other == label]
        assert_uniform([counts[i] for i in ids], kept=share, trials=trials)


def test_balanced_shares_by_hand() -> None:
    memory = make("class-balanced", 10)
    feed(memory, [[5] * 20])
    assert memory.class_counts() == {5: 10}
    feed(memory, [[3]], start=20)
    assert memory.class_counts() == {3: 1, 5: 5}
    assert len(memory) == 6
    feed(memory, [[3] * 9, [8] * 9], start=21)
    assert memory.class_counts() == {3: 3, 5: 4, 8: 3}


def test_balanced_with_more_classes_than_slots() -> None:
    memory = make("class-balanced", 3)
    feed(memory, [[9, 8, 7, 6], [5, 6, 7, 8, 9], [4]])
    assert memory.class_counts() == {7: 1, 8: 1, 9: 1}
    assert memory.seen == 10


@EVERY_MEMORY
def test_one_slot(kind: str) -> None:
    memory = make(kind, 1)
    feed(memory, [[0, 0, 1], [1, 0]])
    assert len(memory) == 1
    assert len(memory.sample(5)) == 1


# --- what is drawn ------------------------------------------------------------------------------


@EVERY_MEMORY
@PROPERTY
@given(capacity=CAPACITIES, stream=STREAMS, n=st.integers(0, 20))
def test_sampling_is_without_replacement_and_changes_nothing(
    kind: str, capacity: int, stream: list[list[int]], n: int
) -> None:
    memory = make(kind, capacity)
    feed(memory, stream)
    before = memory.state_dict()
    twin = make(kind, capacity)
    twin.load_state_dict(before)
    batch = memory.sample(n)
    assert len(batch) == len(batch.x) == len(batch.y) == min(n, len(memory))
    assert len(set(batch.indices.tolist())) == len(batch)
    if len(batch):
        assert set(batch.x[:, 0].tolist()) <= set(stored_ids(memory))
    slots = twin.draw(n)
    again = twin.gather(slots)
    assert torch.equal(slots, batch.indices)
    assert torch.equal(again.x, batch.x)
    assert torch.equal(again.y, batch.y)
    assert torch.equal(again.extras["logits"], batch.extras["logits"])
    after = memory.state_dict()
    assert_same(after | {"generator": before["generator"]}, before)


@EVERY_MEMORY
def test_draws_are_uniform(kind: str) -> None:
    memory = make(kind, 12)
    feed(memory, [[0] * 12, [1] * 3])  # balanced: three slots of class 0 are empty again
    slots = contents(memory).indices.tolist()
    counts, trials = Counter[int](), 1000
    for _ in range(trials):
        counts.update(memory.draw(4).tolist())
    assert counts.keys() == set(slots)
    assert_uniform([counts[slot] for slot in slots], kept=4, trials=trials)


@EVERY_MEMORY
def test_empty_memory_gives_empty_batches(kind: str) -> None:
    memory = make(kind, 5)
    batch = memory.sample(3)
    assert len(batch) == 0
    assert batch.x.shape == batch.y.shape == batch.extras["logits"].shape == (0,)
    assert batch.y.dtype == batch.indices.dtype == torch.int64
    assert memory.labels.tolist() == []
    assert memory.class_counts() == {}
    feed(memory, [[1, 2]])
    assert memory.sample(0).x.shape == (0, 2)


@EVERY_MEMORY
def test_gather_returns_copies(kind: str) -> None:
    memory = make(kind, 5)
    feed(memory, [[1, 2]])
    before = memory.state_dict()
    batch = memory.gather(torch.tensor([1, 0, 1]))
    assert batch.y.tolist() == [2, 1, 2]
    batch.x.zero_()
    memory.labels.zero_()
    assert_same(memory.state_dict(), before)


# --- what is stored -----------------------------------------------------------------------------


@EVERY_MEMORY
def test_images_stay_uint8(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 3, 4, 4), dtype=torch.uint8, generator=generator)
    memory = MEMORIES[kind](8)
    memory.add(images, torch.zeros(6, dtype=torch.int64))
    batch = memory.gather(torch.arange(6))
    assert batch.x.dtype == torch.uint8
    assert torch.equal(batch.x, images)
    assert memory.memory_usage() == 8 * (3 * 4 * 4 + 8)


def test_float_targets() -> None:
    memory = ReservoirMemory(4)
    y = torch.linspace(-1, 1, 18).reshape(9, 2)
    memory.add(torch.arange(9.0), y)
    batch = memory.sample(4)
    assert torch.equal(batch.y, y[batch.x.long()])
    with pytest.raises(InputError, match=r"stored targets are torch\.float32"):
        memory.class_counts()
    twin = ReservoirMemory(4)
    twin.load_state_dict(memory.state_dict())
    assert_same(twin.state_dict(), memory.state_dict())
    assert len(twin) == 4


@EVERY_MEMORY
def test_gradients_are_not_kept(kind: str) -> None:
    memory = make(kind, 3)
    logits = torch.ones(3, 1, dtype=torch.float64, requires_grad=True)
    memory.add(torch.ones(3, requires_grad=True), torch.arange(3), {"logits": 2 * logits})
    memory.set_extras(torch.tensor([0]), {"logits": logits[:1]})
    batch = memory.sample(3)
    assert not batch.x.requires_grad
    assert not batch.extras["logits"].requires_grad
    assert batch.extras["logits"].sum() == 5


@EVERY_MEMORY
def test_set_extras_rewrites_only_what_it_is_given(kind: str) -> None:
    memory = MEMORIES[kind](4, extras=("a", "b"))
    old = torch.arange(4.0)
    memory.add(old, torch.arange(4), {"b": old + 10, "a": old})
    memory.set_extras(torch.tensor([2, 0]), {"a": torch.tensor([-2.0, -5.0])})
    batch = memory.gather(torch.arange(4))
    assert batch.extras["a"].tolist() == [-5, 1, -2, 3]
    assert batch.extras["b"].tolist() == [10, 11, 12, 13]
    assert batch.x.tolist() == [0, 1, 2, 3]


@EVERY_MEMORY
def test_an_extra_can_be_widened_and_goes_on(kind: str) -> None:
    memory = MEMORIES[kind](6, extras=("a", "b"))
    memory.widen_extra("a", 5)  # before there is a column, nothing is to be done
    x, y = torch.arange(4.0), torch.arange(4) % 2
    memory.add(x, y, {"a": x[:, None] + torch.tensor([10.0, 20.0]), "b": x})
    memory.widen_extra("a", 2)
    assert memory.gather(memory.slots).extras["a"].shape == (4, 2)
    memory.widen_extra("a", 3)
    stored = memory.gather(memory.slots)
    assert stored.extras["a"].tolist() == [[i + 10, i + 20, 0] for i in stored.x.tolist()]
    memory.add(x[:1] + 9, y[:1], {"a": torch.tensor([[1.0, 2.0, 3.0]]), "b": x[:1]})
    (last,) = (memory.gather(memory.slots).x == 9).nonzero()[0].tolist()
    assert memory.gather(memory.slots).extras["a"][last].tolist() == [1, 2, 3]
    fresh = MEMORIES[kind](6, extras=("a", "b"))
    fresh.load_state_dict(memory.state_dict())
    assert_same(fresh.state_dict(), memory.state_dict())
    for name, message in (("c", r"Must be in \['a', 'b'\]"), ("b", "without a dimension")):
        with pytest.raises(InputError, match=message):
            memory.widen_extra(name, 4)


@EVERY_MEMORY
def test_slots_are_those_that_hold_something(kind: str) -> None:
    memory = make(kind, 7)
    assert memory.slots.tolist() == []
    feed(memory, [[0, 0, 1], [2] * 9])
    assert memory.labels.tolist() == memory.gather(memory.slots).y.tolist()
    memory.slots.fill_(3)  # a copy
    assert memory.slots.tolist() == sorted(set(memory.slots.tolist()))


@EVERY_MEMORY
def test_host_labels_change_nothing(kind: str) -> None:
    plain, told = MEMORIES[kind](4), MEMORIES[kind](4)
    x, y = torch.arange(30.0), torch.arange(30) % 3
    plain.add(x, y)
    told.add(x, y, labels=y.tolist())
    assert_same(plain.state_dict(), told.state_dict())


@EVERY_MEMORY
def test_what_is_not_accepted_leaves_the_slots(kind: str) -> None:
    memory, accepted = make(kind, 6), torch.tensor(True)
    x, extras = encode(list(range(12)))
    y = torch.arange(12) % 3
    refused, genuine = range(4, 8), set(range(12)) - set(range(4, 8))
    for start in range(0, 12, 4):
        part = slice(start, start + 4)
        accepted.fill_(start not in refused)
        rows = {name: column[part] for name, column in extras.items()}
        memory.add(x[part], y[part], rows, accepted=accepted)
    held = contents(memory)
    assert set(held.x[:, 0].tolist()) <= genuine
    assert torch.equal(held.y, held.x[:, 0] % 3)
    memory.reconcile()
    assert torch.equal(memory.labels, contents(memory).y)
    restored = make(kind, 6)
    restored.load_state_dict(memory.state_dict())
    feed(memory, [[0, 1, 2, 3]] * 5, start=20)
    feed(restored, [[0, 1, 2, 3]] * 5, start=20)
    assert stored_ids(memory) == stored_ids(restored)


def test_repr_shows_settings_and_fill() -> None:
    memory = make("class-balanced", 5, seed=3)
    feed(memory, [[1, 2]])
    assert repr(memory) == (
        "ClassBalancedMemory(capacity=5, extras=('logits',), seed=3, device='cpu', "
        "stored=2, seen=2)"
    )


# --- interruption -------------------------------------------------------------------------------


@EVERY_MEMORY
@PROPERTY
@given(capacity=CAPACITIES, first=STREAMS, second=STREAMS, used=st.booleans())
def test_a_restored_memory_goes_on_bit_for_bit(
    kind: str, capacity: int, first: list[list[int]], second: list[list[int]], used: bool
) -> None:
    memory = make(kind, capacity)
    feed(memory, first)
    memory.draw(3)
    twin = make(kind, capacity, seed=1)
    if used:
        feed(twin, [[6, 1, 2, 0]] * 3)
    state = memory.state_dict()
    twin.load_state_dict(state)
    assert_same(twin.state_dict(), state)
    offered = sum(map(len, first))
    for labels in second:
        for one in (memory, twin):
            feed(one, [labels], start=offered)
        offered += len(labels)
        assert torch.equal(memory.draw(4), twin.draw(4))
        assert_same(memory.state_dict(), twin.state_dict())
        assert memory.class_counts() == twin.class_counts()


def test_restoring_amid_freed_slots_goes_on_alike() -> None:
    for seed in range(10):
        memory, twin = make("class-balanced", 12, seed=seed), make("class-balanced", 12)
        feed(memory, [[0] * 40, [1]])  # six slots were freed in random order, one is used again
        twin.load_state_dict(memory.state_dict())
        for one in (memory, twin):
            feed(one, [[1, 1], [2], [2, 1, 2]], start=41)
        assert_same(memory.state_dict(), twin.state_dict())


@EVERY_MEMORY
def test_state_is_a_copy_both_ways(kind: str) -> None:
    memory, twin = make(kind, 4), make(kind, 4)
    feed(memory, [[0, 1, 2]])
    state = memory.state_dict()
    kept = {name: value.clone() for name, value in state.items()}
    twin.load_state_dict(state)
    for one in (memory, twin):
        feed(one, [[1, 2, 3, 4]] * 5, start=3)
        one.draw(2)
    assert_same(state, kept)


@EVERY_MEMORY
def test_loading_keeps_the_storage(kind: str) -> None:
    memory = make(kind, 4)
    feed(memory, [[0, 1, 2]])
    state = memory.state_dict()
    before = memory._columns["x"]  # a captured graph would go on reading from here
    feed(memory, [[0, 1, 2]], start=3)
    memory.load_state_dict(state)
    assert memory._columns["x"] is before


def put(name: str, value: object) -> Callable[[dict[str, Tensor]], dict[str, Any]]:
    return lambda state: state | {name: value}


def lose(name: str) -> Callable[[dict[str, Tensor]], dict[str, Any]]:
    return lambda state: {key: value for key, value in state.items() if key != name}


BAD_STATES = {
    "lost counter": (lose("seen"), "Must be .*'seen': '0-D torch.int64'"),
    "lost column": (lose("columns.y"), r"Invalid columns \['x', 'logits'\] after 6 samples"),
    "unknown": (put("other", torch.ones(1)), "Invalid memory state .*'other': '1-D torch.float32'"),
    "capacity": (put("capacity", torch.tensor(9)), "Invalid capacity=9 of the state. Must be 4"),
    "fewer rows": (put("columns.x", torch.zeros(3, 2)), r"Invalid shape \(3, 2\) of x"),
    "item shape": (put("columns.x", torch.zeros(4, 3)), r"Invalid x: items \(3,\) and torch.float"),
    "dtype": (put("columns.y", torch.zeros(4)), r"Invalid y: items \(\) and torch.float32"),
    "counter": (put("seen", torch.tensor(0)), r"Invalid columns \['x', 'y', 'logits'\] after 0"),
    "negative": (put("seen", torch.tensor(-1)), "after -1 samples"),
    "vector": (put("seen", torch.tensor([6])), "'seen': '1-D torch.int64'"),
    "generator": (put("generator", torch.zeros(7, dtype=torch.uint8)), "Invalid memory state. "),
    "no tensor": (put("seen", 6), r"\['seen'\] of it. Must be tensors"),
}


@EVERY_MEMORY
@pytest.mark.parametrize("case", sorted(BAD_STATES))
def test_a_bad_state_is_refused_and_changes_nothing(kind: str, case: str) -> None:
    memory, other = make(kind, 4), make(kind, 4, seed=1)
    feed(memory, [[0, 1, 2]])
    feed(other, [[3, 3, 0]] * 2)
    spoil, message = BAD_STATES[case]
    bad = spoil(other.state_dict())
    assert_refused_unchanged(memory, lambda: memory.load_state_dict(bad), CheckpointError, message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("priorities", torch.zeros(3, dtype=torch.float64), r"Invalid 3 priorities\. Must be 4\."),
        (
            "classes",
            torch.tensor([3, 0, 7]),
            r"{3: 2, 0: 1, 7: 0, 5: 1}\. Must be at most {3: 2, 0",
        ),
        (
            "classes",
            torch.tensor([3, 0, 5, 7]),
            r"{3: 2, .*}\. Must be at most {3: 1, 0: 1, 5: 1, 7",
        ),
        (
            "columns.y",
            torch.tensor([3, 3, 0, 0]),
            r"{3: 2, 0: 2, 5: 0}\. Must be at most {3: 2, 0: 1",
        ),
    ],
)
def test_a_bad_balanced_state_is_refused(name: str, value: Tensor, message: str) -> None:
    memory, other = make("class-balanced", 4), make("class-balanced", 4)
    feed(memory, [[0, 1, 2]])
    feed(other, [[3, 3, 3, 0, 0, 5], [5, 5]])
    bad = put(name, value)(other.state_dict())
    assert_refused_unchanged(memory, lambda: memory.load_state_dict(bad), CheckpointError, message)


def test_a_state_of_the_other_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"Must be .*'priorities'"):
        make("class-balanced", 4).load_state_dict(make("reservoir", 4).state_dict())


# --- wrong input --------------------------------------------------------------------------------


def assert_refused_unchanged(
    memory: Memory, action: Callable[[], object], error: type[Exception], message: str
) -> None:
    before = memory.state_dict()
    with pytest.raises(error, match=message):
        action()
    assert_same(memory.state_dict(), before)
    twin = make("class-balanced" if "classes" in before else "reservoir", memory.capacity)
    twin.load_state_dict(before)
    for one in (memory, twin):  # what is derived from the state is as it was, too
        feed(one, [[0, 4, 1, 4]] * 3, start=50)
    assert_same(memory.state_dict(), twin.state_dict())
    assert memory.labels.tolist() == twin.labels.tolist()


X, EXTRAS = encode([8, 9])
Y = torch.tensor([0, 1])
BAD_INPUTS: dict[str, tuple[Callable[[Memory], object], str]] = {
    "fewer labels": (
        lambda m: m.add(X, Y[:1], EXTRAS),
        r"Invalid shape \(1,\) of y\. Must begin with \(2,\)\.",
    ),
    "fewer extras": (
        lambda m: m.add(X, Y, {"logits": EXTRAS["logits"][:1]}),
        r"Invalid shape \(1, 1\) of logits\. Must begin with \(2,\)\.",
    ),
    "scalar": (lambda m: m.add(X[0, 0], Y[0], EXTRAS), r"Invalid shape \(\) of x\."),
    "item shape": (
        lambda m: m.add(X[:, :1], Y, EXTRAS),
        r"Invalid x: items \(1,\) and torch.int64. Must be as those stored, \(2,\) and torch.int64",
    ),
    "dtype": (
        lambda m: m.add(X.float(), Y, EXTRAS),
        r"Invalid x: items \(2,\) and torch.float32. Must be as those stored, \(2,\) and torch.int",
    ),
    "targets": (lambda m: m.add(X, Y.float(), EXTRAS), r"Invalid y: items \(\) and torch.float32"),
    "extra's dtype": (
        lambda m: m.add(X, Y, {"logits": EXTRAS["logits"].float()}),
        r"Invalid logits: items \(1,\) and torch.float32",
    ),
    "no extras": (lambda m: m.add(X, Y), r"Invalid extras \[\]\. Must be \['logits'\]\."),
    "unknown extras": (
        lambda m: m.add(X, Y, EXTRAS | {"x": X}),
        r"Invalid extras \['logits', 'x'\]\. Must be \['logits'\]\.",
    ),
    "negative": (lambda m: m.add(X, -Y, EXTRAS), r"Invalid label -1 in y\. Must be at least 0\."),
    "other labels": (
        lambda m: m.add(X, Y, EXTRAS, labels=[1, 1]),
        r"Invalid labels \[1, 1\]\. Must be the 2 values of y\.",
    ),
    "fewer host labels": (lambda m: m.add(X, Y, EXTRAS, labels=[0]), r"Invalid labels \[0\]\."),
    "draw": (lambda m: m.draw(-1), r"Invalid n=-1\. Must be at least 0\."),
    "sample": (lambda m: m.sample(-1), r"Invalid n=-1\. Must be at least 0\."),
    "free slot": (
        lambda m: m.gather(torch.tensor([0, 3])),
        r"Invalid slots \[0, 3\]\. Must be among the 3 occupied of 4\.",
    ),
    "no slot": (lambda m: m.gather(torch.tensor([4])), r"Invalid slots \[4\]"),
    "negative slot": (lambda m: m.gather(torch.tensor([-4])), r"Invalid slots \[-4\]"),
    "slots' dtype": (
        lambda m: m.gather(torch.tensor([1.0])),
        r"Invalid slots: 1-D torch.float32 on cpu\. Must be 1-D torch.int64 on cpu\.",
    ),
    "one slot twice": (
        lambda m: m.set_extras(torch.tensor([1, 1]), EXTRAS),
        r"Invalid slots \[1, 1\]\. Must be distinct\.",
    ),
    "set a free slot": (lambda m: m.set_extras(torch.tensor([0, 3]), EXTRAS), "Invalid slots"),
    "set x": (lambda m: m.set_extras(torch.tensor([0, 1]), {"x": X}), r"Invalid extras \['x'\]"),
    "set too many": (
        lambda m: m.set_extras(torch.tensor([0]), EXTRAS),
        r"Invalid shape \(2, 1\) of logits\. Must begin with \(1,\)\.",
    ),
}


@EVERY_MEMORY
@pytest.mark.parametrize("case", sorted(BAD_INPUTS))
def test_bad_input_is_refused_and_changes_nothing(kind: str, case: str) -> None:
    memory = make(kind, 4)
    feed(memory, [[0, 1, 2]])
    action, message = BAD_INPUTS[case]
    assert_refused_unchanged(memory, lambda: action(memory), InputError, message)


@EVERY_MEMORY
@pytest.mark.parametrize("y", [torch.zeros(2, dtype=torch.int32), torch.zeros(2, 1).long()])
def test_a_first_batch_with_bad_targets_allocates_nothing(kind: str, y: Tensor) -> None:
    memory = MEMORIES[kind](4)
    with pytest.raises(InputError, match=rf"Invalid y: {y.ndim}-D {y.dtype}\. Must be 1-D torch"):
        memory.add(torch.zeros(2), y)
    assert memory.memory_usage() == memory.seen == 0
    memory.add(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


def test_float_targets_are_for_the_reservoir_alone() -> None:
    with pytest.raises(InputError, match=r"Invalid y: 1-D torch.float32\. Must be 1-D torch.int64"):
        ClassBalancedMemory(4).add(torch.zeros(2), torch.zeros(2))
    with pytest.raises(InputError, match=r"Invalid labels beside torch.float32 targets"):
        ReservoirMemory(4).add(torch.zeros(2), torch.zeros(2), labels=[0, 0])


@EVERY_MEMORY
def test_an_empty_batch_changes_nothing(kind: str) -> None:
    memory = MEMORIES[kind](4)
    before = memory.state_dict()
    memory.add(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert_same(memory.state_dict(), before)


@EVERY_MEMORY
def test_bad_settings_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"^Invalid capacity=0\. Must be at least 1\.$"):
        MEMORIES[kind](0)
    for extras in (("x",), ("y",), ("a", "a"), ("",), "logits"):
        with pytest.raises(ConfigError, match=r"Invalid extras=.* Must be distinct names"):
            MEMORIES[kind](4, extras=extras)


# --- an accelerator -----------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@EVERY_MEMORY
def test_a_memory_on_a_device_agrees_with_one_on_the_host(kind: str) -> None:
    host = make(kind, 8)
    device = MEMORIES[kind](8, extras=("logits",), device="cuda")
    for step in range(12):
        x, extras = encode(list(range(5 * step, 5 * step + 5)))
        y = torch.arange(5 * step, 5 * step + 5) % (1 + step // 3)
        moved = {"logits": extras["logits"].cuda()}
        x_moved, y_moved = x.cuda(), y.cuda()
        device.add(x_moved, y_moved, moved, labels=y.tolist())
        device.set_extras(device.draw(1), {"logits": moved["logits"][:1]})
        batch = device.sample(4)
        host.add(x, y, extras)
        host.set_extras(host.draw(1), {"logits": extras["logits"][:1]})
        assert torch.equal(batch.x.cpu(), host.sample(4).x)
        assert_same(device.state_dict(), host.state_dict())
        before = {name: column.clone() for name, column in device._columns.items()}
        refused = {"logits": moved["logits"] + 1}
        device.add(
            x_moved + 1, y_moved, refused, labels=y.tolist(), accepted=torch.tensor(False).cuda()
        )
        assert_same(device._columns, before)
        host.add(x, y, extras)  # takes the same slots, and draws as often
        device._columns = {name: column.cuda() for name, column in host._columns.items()}
