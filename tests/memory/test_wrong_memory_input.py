"""A memory refuses wrong input and damaged states, and is as it was before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from offers import EVERY_MEMORY, assert_refused_unchanged, assert_same, encode, feed, make
from torch import Tensor

from ocar.errors import CheckpointError, ConfigError, InputError
from ocar.memory import MEMORIES, Memory, ReservoirMemory


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
    "no slots": (lose("occupied"), "Must be .*'occupied': '1-D torch.bool'"),
    "more slots": (put("occupied", torch.ones(5).bool()), "Invalid capacity=4 of the state"),
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


def test_what_a_policy_uses_must_be_known() -> None:
    class Curious(ReservoirMemory):
        uses = ("loss", "age")

    memory = Curious(4)
    x, y = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(InputError, match=r"Invalid known \['loss'\]: Curious also uses \['age'\]"):
        memory.add(x, y, known={"loss": torch.ones(2)})
    assert len(memory) == memory.seen == 0
    memory.add(x, y, known={"loss": torch.ones(2), "age": torch.ones(2), "more": torch.ones(2)})
    assert len(memory) == 2
