"""A batch that is skipped, or that an error breaks off, leaves nothing behind.

The oracle is a run that never saw the batch: all tensors and values of ``learner.state()`` are the
same right afterwards and at the end of the stream, to the bit. Only what counts tries may differ,
after a skip: the guard's counts and ``learner.batches``.
"""

from __future__ import annotations

import copy
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from cases import ALONE, Case
from torch import Tensor, nn
from toys import convnet, images, mlp, never_wait, registered, seeded, spoiled, vectors

import ocar
from ocar.augment import HorizontalFlip
from ocar.curvature import EKFAC
from ocar.errors import InputError
from ocar.guard import Guard, GuardWarning
from ocar.learner import Learner
from ocar.memory.memory import Offer, Placement
from ocar.memory.reservoir import ReservoirMemory

pytestmark = pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")

METHODS = [case.method for case in ALONE]
BATCHES = 6
TRIES = ("guard.", "values.batches")

Batch = tuple[Tensor, Tensor]
Make = Callable[[str], Learner]


def state_of(learner: Learner) -> dict[str, Any]:
    tensors, values = learner.state()
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    return copies | {f"values.{name}": repr(value) for name, value in values.items()}


def differences(one: dict[str, Any], other: dict[str, Any], but: tuple[str, ...]) -> list[str]:
    def same(name: str) -> bool:
        a, b = one.get(name), other.get(name)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.shape == b.shape and torch.equal(a, b)
        return type(a) is type(b) and a == b

    names = sorted(one.keys() | other.keys())
    return [name for name in names if not name.startswith(but or ("-",)) and not same(name)]


# --- learners and streams ------------------------------------------------------------------------


def growing(method: str) -> Learner:
    """Two units at first; the stream brings five classes."""
    return Case(method).make(mlp(units=2))


def fixed(method: str) -> Learner:
    return Case(method).make(mlp(units=5), classes=(0, 1, 2, 3, 4))


def regression(method: str) -> Learner:
    given = {"likelihood": "gaussian", "memory_kind": "reservoir"}
    return Case(method).make(mlp(units=2), **given)


def student_t(method: str) -> Learner:
    given = {"likelihood": "student-t", "memory_kind": "reservoir"}
    return Case(method).make(mlp(units=2), **given)


def with_batchnorm(method: str) -> Learner:
    """Of images, in a network with BatchNorm."""
    return Case(method).make(convnet(units=2))


WAYS: dict[str, Make] = {
    "growing": growing,
    "fixed": fixed,
    "regression": regression,
    "student-t": student_t,
}
REGRESSIONS = ("regression", "student-t")


def labels_at(index: int) -> list[int]:
    """Classes come in pairs; the last brings a fifth, so that a head of four doubles."""
    return [0, 1] if index < 2 else [2, 3] if index < 4 else [0, 4]


def stream(way: str) -> list[Batch]:
    batches = []
    for index in range(BATCHES):
        make = images if way == "batchnorm" else vectors
        x, y = next(make(1, labels_at(index), seed=index, size=12))
        batches.append((x, x[:, :2].clone()) if way in REGRESSIONS else (x, y))
    return batches


def strange_batch(way: str) -> Batch:
    """A batch like others, with labels that no other batch has; it makes the head grow."""
    make = images if way == "batchnorm" else vectors
    x, y = next(make(1, [0, 3, 7, 8, 9], seed=99, size=12))
    return (x, x[:, :2].clone()) if way in REGRESSIONS else (x, y)


# --- ways to be bad ------------------------------------------------------------------------------


def learn_spoiled(learner: Learner, x: Tensor, y: Tensor) -> None:
    with spoiled(learner):
        learner.learn(x, y)


def scaled(factor: float) -> Callable[[Learner, Tensor, Tensor], None]:
    return lambda learner, x, y: learner.learn(factor * x, y) and None


def not_a_number(learner: Learner, x: Tensor, y: Tensor) -> None:
    with pytest.raises(InputError, match="NaN or Inf"):
        learner.learn(x * float("nan"), y)


def infinite(learner: Learner, x: Tensor, y: Tensor) -> None:
    x = x.clone()
    x[3, 2] = float("inf")
    with pytest.raises(InputError, match="1 of 12 samples"):
        learner.learn(x, y)


def of_wrong_type(learner: Learner, x: Tensor, y: Tensor) -> None:
    with pytest.raises(InputError, match="x must be uint8, bool, integer or floating point"):
        learner.learn(x + 0j, y)
    with pytest.raises(InputError, match=r"floating point|and torch\.int64"):
        learner.learn(x.long(), y)
    with pytest.raises(InputError, match="y must be"):
        learner.learn(x, y.half() if y.is_floating_point() else y.double())


def without_gradients(learner: Learner, x: Tensor, y: Tensor) -> None:
    for context in (torch.no_grad(), torch.inference_mode()):
        with context, pytest.raises(InputError, match=r"outside torch|inference_mode"):
            learner.learn(x, y)


@contextmanager
def breaking(learner: Learner, error: BaseException, *, call: int) -> Iterator[None]:
    """A layer that raises in its n-th training call from now on, counted from 1."""
    calls = itertools.count(1)

    def hook(module: nn.Module, given: Any) -> None:
        if module.training and next(calls) == call:
            raise error

    with next(learner.model.children()).register_forward_pre_hook(hook):
        yield


def raising(error: type[BaseException]) -> Callable[[Learner, Tensor, Tensor], None]:
    def bad(learner: Learner, x: Tensor, y: Tensor) -> None:
        for call in (1, 2):  # of every method the second pass has a second call at the latest
            with breaking(learner, error("it broke"), call=call), pytest.raises(error):
                learner.learn(x, y)

    return bad


BAD: dict[str, Callable[[Learner, Tensor, Tensor], None]] = {
    "loss": learn_spoiled,
    "1e8": scaled(1e8),
    "1e15": scaled(1e15),
    "1e30": scaled(1e30),
    "nan": not_a_number,
    "inf": infinite,
    "type": of_wrong_type,
    "no_grad": without_gradients,
    "error": raising(RuntimeError),
    "memory": raising(torch.OutOfMemoryError),
    "interrupt": raising(KeyboardInterrupt),
}
OF_STEPS = {"loss", "no_grad", "error", "memory", "interrupt"}
SKIPPED = {"loss", "1e8", "1e15", "1e30"}


def legal(method: str, way: str, kind: str) -> bool:
    """Whether a method can be made that way, and the batch is bad for it."""
    if method == "gdumb" and kind in OF_STEPS:
        return False  # it takes no steps on the stream
    settings = Case(method).settings()[0]
    return way not in REGRESSIONS or not settings.no_regression


def check(method: str, way: str, kind: str, position: int, make: Make | None = None) -> None:
    """Put a bad batch into a stream, and compare with the stream alone."""
    make = make or WAYS[way]
    with_it, never = make(method), make(method)
    but = TRIES if kind in SKIPPED else ("-",)
    for index, (x, y) in enumerate(stream(way)):
        if index == position:
            before, skipped = state_of(never), with_it.guarded.skipped
            BAD[kind](with_it, *strange_batch(way))
            if kind in SKIPPED and with_it.guarded.skipped == skipped:
                # No batch before it says that its scale is wrong, and its numbers are finite.
                assert position == 0
                assert kind in ("1e8", "1e15")
                return
            assert not differences(state_of(with_it), before, but)
        for learner in (with_it, never):
            assert learner.learn(x, y).loss.isfinite()
        assert with_it.guarded.in_a_row == 0
    assert not differences(state_of(with_it), state_of(never), but)
    assert with_it.batches == never.batches + (kind in SKIPPED)
    assert with_it.steps == never.steps


FEW = [  # every method, every kind of bad batch and three positions, but not their product
    (method, "growing", kind, position)
    for number, (method, kind) in enumerate(itertools.product(METHODS, BAD))
    for position in [(0, 2, 4)[number // 3 % 3]]
    if legal(method, "growing", kind) and number % 3 == 0
]
FEW += [("ocar", "student-t", kind, number % 3) for number, kind in enumerate(BAD)]
MORE = [
    (method, way, kind, position)
    for method, way, kind, position in itertools.product(METHODS, WAYS, BAD, range(5))
    if legal(method, way, kind)
]


@pytest.mark.parametrize(("method", "way", "kind", "position"), FEW)
def test_a_bad_batch_leaves_nothing_behind(method: str, way: str, kind: str, position: int) -> None:
    check(method, way, kind, position)


@pytest.mark.sweep
@pytest.mark.parametrize(("method", "way", "kind", "position"), MORE)
def test_no_bad_batch_leaves_anything_behind(
    method: str, way: str, kind: str, position: int
) -> None:
    check(method, way, kind, position)


def test_a_check_that_sees_what_stays_behind() -> None:
    """The negative control: without a guard all of these bad batches leave something."""
    for kind in ("loss", "error", "interrupt", "1e15"):
        with pytest.raises(AssertionError):
            check("er", "growing", kind, 2, lambda method: Case(method).make(mlp(2), guard=None))


# --- more learners --------------------------------------------------------------------------------


def with_average(method: str) -> Learner:
    return Case(method).make(mlp(units=2), prediction="average", average_rate=0.3)


def with_augmentation(method: str) -> Learner:
    return Case(method).make(convnet(units=2), augment=HorizontalFlip())


def with_ekfac(method: str) -> Learner:
    """Its basis is renewed before every second batch."""
    return Case(method).make(mlp(units=2), curvature=EKFAC(basis_every=2))


def with_dense(method: str) -> Learner:
    return Case(method).make(mlp(units=2), curvature="dense")


def with_reservoir(method: str) -> Learner:
    return Case(method).make(mlp(units=2), memory_kind="reservoir")


def with_window(method: str) -> Learner:
    return Case(method).make(mlp(units=2), memory_kind="window")


def with_forgetting(method: str) -> Learner:
    return Case(method).make(mlp(units=2), memory_kind="exponential")


def with_averaged_means(method: str) -> Learner:
    return Case(method).make(mlp(units=2), means="averaged")


def with_new_teachers(method: str) -> Learner:
    return Case(method).make(convnet(units=2), teacher="batches", refresh=2)


def with_slow_teacher(method: str) -> Learner:
    given = {"prediction": "both", "distillation": 1.0, "slow_rate": 0.3}
    return Case(method).make(convnet(units=2), **given)


def with_stretches(method: str) -> Learner:
    return Case(method).make(convnet(units=2), stretches="batches", stretch=2)


OTHERS: list[tuple[str, Make]] = [
    ("er", with_average),
    ("er-ace", with_augmentation),
    ("lpr", with_augmentation),
    ("ocar", with_ekfac),
    ("ocar-ace", with_ekfac),
    ("ocar", with_dense),
    ("er-ace", with_reservoir),
    ("ocar", with_window),
    ("er-ace", with_forgetting),
    ("scr", with_averaged_means),
    ("er-lwf", with_new_teachers),
    ("er", with_slow_teacher),
    ("ocar", with_slow_teacher),
    ("ocar-ace", with_slow_teacher),
    ("ocm", with_stretches),
    ("onpro", with_stretches),
    ("er", with_batchnorm),
    ("ocar", with_batchnorm),
    ("lpr", with_batchnorm),
]


@pytest.mark.parametrize("kind", ["loss", "error"])
@pytest.mark.parametrize(("method", "make"), OTHERS)
def test_nor_in_learners_with_more_state(method: str, make: Make, kind: str) -> None:
    on_pictures = (with_batchnorm, with_new_teachers, with_stretches, with_augmentation)
    pictures = make in (*on_pictures, with_slow_teacher)
    check(method, "batchnorm" if pictures else "growing", kind, 4, make)


@pytest.mark.parametrize("position", [0, 2])
def test_one_sample_is_too_few_for_batchnorm(position: int) -> None:
    def norm() -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))

    learner, never = (Case("agem").make(norm()) for _ in range(2))
    for index, (x, y) in enumerate(stream("growing")):
        if index == position:
            with pytest.raises(ValueError, match="more than 1 value per channel"):
                learner.learn(x[:1], torch.tensor([9]))
            assert not differences(state_of(learner), state_of(never), ("-",))
        learner.learn(x, y)
        never.learn(x, y)
    assert not differences(state_of(learner), state_of(never), ("-",))


class Hoarding(ReservoirMemory):
    """A policy of one's own, which changes its lists, sets and tensors in place."""

    def start(self) -> None:
        self.rewritten = torch.zeros(self.capacity)
        self.offers: list[int] = []
        self.by_label: dict[int, set[int]] = {}

    def place(self, offer: Offer) -> Placement:
        placement = super().place(offer)
        self.offers.append(len(offer))
        for slot, row in placement.writes.items():
            self.by_label.setdefault(offer.labels[row], set()).add(slot)
            self.rewritten[slot] += 1
        return placement

    def policy_state(self) -> dict[str, Tensor]:
        pairs = sorted((label, slot) for label, slots in self.by_label.items() for slot in slots)
        lists = {"offers": torch.tensor(self.offers), "pairs": torch.tensor(pairs)}
        return lists | {"rewritten": self.rewritten}


@pytest.mark.parametrize("kind", ["loss", "interrupt"])
@pytest.mark.parametrize("method", ["er", "er-ace"])
def test_nor_in_a_memory_of_one_s_own(method: str, kind: str) -> None:
    with registered(hoarding=Hoarding):
        make = lambda method: Case(method).make(mlp(units=2), memory_kind="hoarding")  # noqa: E731
        check(method, "growing", kind, 3, make)


# --- interrupts at any moment ---------------------------------------------------------------------

SOURCE = str(Path(ocar.__file__).parent)


class Tracer:
    """Counts the lines of the package that run, and interrupts before one of them."""

    def __init__(self, stop: int | None) -> None:
        self.stop, self.lines = stop, 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(SOURCE):
            return None
        if code.co_filename.endswith("undo.py"):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.stop:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def run(self, learner: Learner, batch: Batch) -> bool:
        """Learn a batch; returns whether that was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            learner.learn(*batch)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def interrupted(method: str, way: str, tries: int, *, seed: int) -> int:
    """Interrupt a batch at random lines: all of it is learned or nothing; returns the lines."""
    batches = [*stream(way)[:3], strange_batch(way), *stream(way)[3:]]
    generator = random.Random(seed)
    lines = 0
    for index in (0, 3):
        after = WAYS[way](method)
        for batch in batches[:index]:
            after.learn(*batch)
        learner, before = copy.deepcopy(after), state_of(after)
        counted = Tracer(None)
        counted.run(copy.deepcopy(after), batches[index])
        after.learn(*batches[index])
        lines += counted.lines
        undone = 0
        for stop in sorted(generator.sample(range(1, counted.lines + 1), tries)):
            Tracer(stop).run(learner, batches[index])
            if learner.batches == after.batches:  # after the last line that can be undone
                assert not differences(state_of(learner), state_of(after), ("-",)), stop
                break
            assert not differences(state_of(learner), before, ("-",)), stop
            undone += 1
        else:
            learner.learn(*batches[index])
        assert undone > 0.9 * tries - 1
        for batch in batches[index + 1 :]:
            learner.learn(*batch)
            after.learn(*batch)
        assert not differences(state_of(learner), state_of(after), ("-",))
    return lines


@pytest.mark.parametrize("method", ["er", "er-ace", "ocar", "onpro", "lpr", "gdumb"])
def test_an_interrupt_at_any_line_undoes_the_batch(method: str) -> None:
    assert interrupted(method, "growing", 6, seed=0) > 300


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("method", "way"), [(m, w) for m in METHODS for w in WAYS if legal(m, w, "1e8")]
)
def test_interrupts_at_many_lines_undo_the_batch(method: str, way: str, seed: int) -> None:
    interrupted(method, way, 50, seed=seed)


# --- what follows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e8, 1e11, 1e15, 1e18])
@pytest.mark.parametrize("method", ["er-ace", "ocar", "ocar-ace", "ngd"])
def test_good_batches_are_learned_after_a_bad_first_one(method: str, factor: float) -> None:
    learner = Case(method).make(mlp())
    x, y = next(vectors(1, [0, 1, 2, 3], seed=9))
    learner.learn(factor * x, y)
    skipped = learner.guarded.skipped
    for x, y in vectors(30, [0, 1, 2, 3]):
        learner.learn(x, y)
    assert learner.guarded.skipped == skipped


@pytest.mark.parametrize("method", ["er-ace", "ocar-ace"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_skipped_batch_is_never_replayed(
    method: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the verdict is a value, and the batch was in the memory during its steps."""
    if not waits:
        never_wait(monkeypatch)
    learner = Case(method).make(mlp())
    batches = list(vectors(40, [0, 1, 2, 3]))
    for x, y in batches[:3]:
        learner.learn(x, y)
    marked = batches[3][0].clone()
    marked[:, 0] = 777.0
    learn_spoiled(learner, marked, batches[3][1])
    for x, y in batches[4:]:
        learner.learn(x, y)
        held = learner.memory.gather(learner.memory.slots).x
        assert not (held[:, 0] == 777.0).any()
    learner.check()
    assert learner.guarded.skipped == 1


def test_tensors_of_inference_mode_are_learned_like_others() -> None:
    for method, way in (("er", "growing"), ("ocar", "regression"), ("gdumb", "fixed")):
        one, other = (WAYS[way](method) for _ in range(2))
        for x, y in stream(way):
            with torch.inference_mode():
                made = x.clone(), y.clone()
            one.learn(*made)
            other.learn(x, y)
        assert not differences(state_of(one), state_of(other), ("-",))


def test_a_scale_that_has_changed_for_good() -> None:
    """The guard refuses, says so, and accepts the scale when it is asked to, or is patient."""
    stubborn, patient = (
        Case("er").make(mlp(), guard=guard) for guard in (Guard(), Guard(rescale_after=25))
    )
    batches = list(vectors(40, [0, 1, 2, 3]))
    for learner in (stubborn, patient):
        for x, y in batches[:5]:
            learner.learn(x, y)
    for x, y in batches[5:24]:
        stubborn.learn(5000 * x, y)
    with pytest.warns(GuardWarning, match=r"skipped 20 batches in a row.*accept_scale"):
        stubborn.learn(5000 * x, y)
    assert stubborn.guarded.in_a_row == stubborn.guarded.out_of_scale == 20
    stubborn.accept_scale()
    stubborn.learn(5000 * x, y)
    assert stubborn.guarded.in_a_row == 0
    for x, y in batches:
        patient.learn(5000 * x, y)
    assert patient.guarded.out_of_scale == 25
    assert len(patient.memory) == 30
