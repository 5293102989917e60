"""Every memory holds genuine samples, draws uniformly, and goes on exactly after a restart."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from offers import (
    CAPACITIES,
    EVERY_MEMORY,
    PROPERTY,
    STREAMS,
    assert_same,
    assert_uniform,
    contents,
    encode,
    feed,
    make,
    stored_ids,
)

from ocar.errors import InputError
from ocar.memory import MEMORIES

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


@EVERY_MEMORY
@PROPERTY
@given(capacity=CAPACITIES, labels=st.lists(st.integers(0, 6), max_size=40), size=st.integers(1, 9))
def test_batch_size_does_not_matter(kind: str, capacity: int, labels: list[int], size: int) -> None:
    one_by_one, batched = make(kind, capacity), make(kind, capacity)
    feed(one_by_one, [[label] for label in labels])
    feed(batched, [labels[i : i + size] for i in range(0, len(labels), size)])
    assert sorted(stored_ids(one_by_one)) == sorted(stored_ids(batched))


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
        "ClassBalancedMemory(capacity=5, extras=('logits',), seed=3, device=device(type='cpu'), "
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
    before = memory._columns.tensors["x"]  # a recorded graph would go on reading from here
    feed(memory, [[0, 1, 2]], start=3)
    memory.load_state_dict(state)
    assert memory._columns.tensors["x"] is before


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
        before = {name: column.clone() for name, column in device._columns.tensors.items()}
        refused = {"logits": moved["logits"] + 1}
        device.add(
            x_moved + 1, y_moved, refused, labels=y.tolist(), accepted=torch.tensor(False).cuda()
        )
        assert_same(device._columns.tensors, before)
        host.add(x, y, extras)  # takes the same slots, and draws as often
        device._columns.tensors = {
            name: column.cuda() for name, column in host._columns.tensors.items()
        }


# --- what is removed ----------------------------------------------------------------------------


@EVERY_MEMORY
@PROPERTY
@given(capacity=CAPACITIES, stream=STREAMS, data=st.data())
def test_removed_samples_are_gone_and_the_memory_goes_on(
    kind: str, capacity: int, stream: list[list[int]], data: st.DataObject
) -> None:
    memory = make(kind, capacity)
    feed(memory, stream)
    before = stored_ids(memory)
    gone = data.draw(st.lists(st.sampled_from(before), unique=True)) if before else []
    others = encode([1000])[0]  # which are not stored
    slots = memory.find(torch.cat([encode(gone)[0].view(-1, 2), others]))
    assert len(slots) == len(gone)
    memory.remove(slots)
    assert stored_ids(memory) == [i for i in before if i not in gone]
    rows = {tuple(row) for row in memory.state_dict().get("columns.x", torch.empty(0, 2)).tolist()}
    assert rows.isdisjoint(tuple(row) for row in encode(gone)[0].view(-1, 2).tolist())
    again = make(kind, capacity)
    again.load_state_dict(memory.state_dict())
    for each in (memory, again):
        feed(each, stream, start=100)
    assert_same(memory.state_dict(), again.state_dict())
    late = [label for labels in stream for label in labels]
    ids = stored_ids(memory)
    assert memory.labels.tolist() == [late[i % 100] for i in ids]
    assert not set(ids) & set(gone)
