"""Samples of several inputs: integers, tuples and dictionaries of tensors, numpy arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import ALONE, Case
from torch import Tensor, nn
from toys import assert_same, everything, never_wait, seeded, spoiled, vectors
from twins import assert_resumes

import ocar
from ocar.augment import CropFlip, Normalize
from ocar.errors import InputError
from ocar.evaluate.probe import probe_accuracy
from ocar.learner import Learner
from ocar.methods.registry import METHODS
from ocar.structure import Structure, as_inputs, call, cat, parts_of

LENGTH, WORDS = 5, 30


class Bag(nn.Module):
    """The mean embedding of the words that a mask leaves, beside numbers and images."""

    def __init__(self, *, several: bool, units: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        if several:
            self.numbers = nn.Linear(6, 8)
            self.pixels = nn.Linear(16, 8)
        self.head = nn.Linear(8, units)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        numbers: Tensor | None = None,
        image: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        kept = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        features = (self.words(ids) * kept.unsqueeze(-1)).sum(1) / kept.sum(1, keepdim=True)
        if numbers is not None:
            features = features + self.numbers(numbers)
        if image is not None:
            features = features + self.pixels(image.flatten(1))
        if weight is not None:
            features = features * (1 + 0 * weight[:, None])
        return self.head(torch.tanh(features))


def bag() -> nn.Module:
    return seeded(lambda: Bag(several=False))


def several() -> nn.Module:
    return seeded(lambda: Bag(several=True))


def dense() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)))


def parts(count: int, labels: list[int], *, seed: int = 0, size: int = 10) -> Iterator:
    """All parts that :class:`Bag` takes, and labels."""
    generator = torch.Generator().manual_seed(seed)
    for numbers, y in vectors(count, labels, seed=seed, size=size):
        words = torch.randint(6, (size, LENGTH), generator=generator)
        mask = torch.rand(size, LENGTH, generator=generator) < 0.7
        mask[:, 0] = True
        noise = torch.randint(0, 100, (size, 1, 4, 4), generator=generator)
        found = {
            "ids": (6 * (y % 5))[:, None] + words,
            "mask": mask,
            "numbers": numbers,
            "image": ((30 * (y % 5))[:, None, None, None] + noise).to(torch.uint8),
            "weight": torch.rand(size, generator=generator),
        }
        yield found, y


def as_arrays(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: part.numpy() for name, part in x.items()}
    return x.numpy()


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[dict[str, Tensor]], Any]]] = {
    "int64": (bag, lambda p: p["ids"]),
    "int32": (bag, lambda p: p["ids"].int()),
    "tuple": (bag, lambda p: (p["ids"], p["mask"])),
    "dictionary": (bag, lambda p: {"mask": p["mask"], "ids": p["ids"].int()}),
    "mixed": (several, dict),
    "array": (dense, lambda p: p["numbers"].numpy()),
    "arrays": (bag, lambda p: as_arrays({"ids": p["ids"], "mask": p["mask"]})),
}
"""A model and what it is given."""

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EVERY_METHOD = pytest.mark.parametrize("method", ["er", "ocar", "der++", "ocar-ace"])


def make(method: str, kind: str, **settings: Any) -> Learner:
    given = {"memory": 30, "replay_batch": 8, "passes": 2} | settings
    if method in ("er", "der++"):
        given = {"lr": 0.1} | given
    return ocar.make_learner(method, KINDS[kind][0](), **given)


def stream(kind: str, count: int, labels: list[int], **options: Any) -> Iterator:
    for found, y in parts(count, labels, **options):
        x = KINDS[kind][1](found)
        yield x, y.numpy() if kind.startswith("array") else y


def rows(x: Any, count: int) -> Any:
    if isinstance(x, dict):
        return {name: part[:count] for name, part in x.items()}
    return tuple(part[:count] for part in x) if isinstance(x, tuple) else x[:count]


@EVERY_METHOD
@EVERY_KIND
def test_learns_and_predicts(method: str, kind: str) -> None:
    """Classes that arrive one after another; the head grows, and the last batch is short."""
    learner = make(method, kind)
    stretches = [([7, 3], 10), ([11], 10), ([0, 9], 15)]
    for labels, count in stretches:
        for x, y in stream(kind, count, labels, size=12):
            assert torch.isfinite(learner.learn(x, y).loss)
    learner.learn(rows(x, 3), y[:3])
    ((x, y),) = stream(kind, 1, [7, 3, 11, 0, 9], seed=5, size=200)
    logits = learner.predict(x, chunk=64)
    found = torch.tensor(learner.classes)[logits.argmax(1)]
    assert (found == torch.as_tensor(y)).double().mean() > 0.5
    proba = learner.predict_proba(x)
    assert torch.allclose(proba, logits.exp() / logits.exp().sum(1, keepdim=True))
    assert proba.shape == (200, 5)
    held = learner.memory.sample(5).x
    given = parts_of(as_inputs(x))
    assert {n: p.dtype for n, p in parts_of(held).items()} == {n: p.dtype for n, p in given.items()}


@EVERY_METHOD
@EVERY_KIND
def test_resumes_to_the_bit(method: str, kind: str, tmp_path: Path) -> None:
    learner = make(method, kind)
    batches = list(stream(kind, 8, [0, 1, 2, 3], size=12))
    for x, y in batches[:4]:
        learner.learn(x, y)
    loaded = assert_resumes(learner, batches[4:], KINDS[kind][0](), tmp_path)
    with pytest.raises(InputError, match=r"must hold samples of shape|must be"):
        loaded.predict(torch.zeros(3, 9))


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
@pytest.mark.parametrize("position", [0, 3])
@EVERY_METHOD
@EVERY_KIND
def test_a_bad_batch_leaves_nothing_behind(method: str, kind: str, position: int) -> None:
    batches = list(stream(kind, 6, [0, 1, 2, 3], size=12))
    (bad, y_bad) = next(stream(kind, 1, [1, 9], seed=9, size=12))
    learner, other = make(method, kind), make(method, kind)
    for index, (x, y) in enumerate(batches):
        if index == position:
            with spoiled(learner):
                learner.learn(bad, y_bad)
            assert learner.guarded.not_finite == 1
            calls = iter([False, True])

            def interrupt(*given: Any, calls: Iterator = calls) -> None:
                if next(calls, True):
                    raise KeyboardInterrupt

            with (
                learner.head.layer.register_forward_pre_hook(interrupt),
                pytest.raises(KeyboardInterrupt),
            ):
                learner.learn(bad, y_bad)
        for each in (learner, other):
            each.learn(x, y)
    mine, theirs = everything(learner), everything(other)
    for state in (mine, theirs):
        state.pop("guard.counts")
        state.pop("values")  # the batches that were given
    assert_same(mine, theirs)


class Joined(nn.Module):
    """A network of some columns that are given in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dense()

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.inner(torch.cat([first, second], dim=1))


TAKING_ALL = [case for case in ALONE if not METHODS[case.method].settings.needs_numbers]


@pytest.mark.parametrize("form", ["tuple", "dictionary"])
@pytest.mark.parametrize("case", TAKING_ALL, ids=str)
def test_two_parts_are_learned_as_their_columns_in_one_tensor(case: Case, form: str) -> None:
    """Every method that takes structures: the same numbers, in two parts or in one."""
    whole, split = case.make(dense()), case.make(Joined())
    for x, y in vectors(8, [0, 1, 2, 3], size=12):
        whole.learn(x, y)
        pair = x[:, :2], x[:, 2:]
        given = pair if form == "tuple" else dict(zip(("first", "second"), pair, strict=True))
        split.learn(given, y)
    mine = {n.removeprefix("inner."): t for n, t in split.model.state_dict().items()}
    assert_same(mine, whole.model.state_dict())
    assert torch.equal(split.predict(given), whole.predict(x))


class Named(nn.Module):
    """The same network, whose layers get their input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dense()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.inner:
            x = layer(input=x)
        return x


@pytest.mark.parametrize("case", TAKING_ALL, ids=str)
def test_a_layer_may_get_its_input_by_name(case: Case) -> None:
    """The same numbers, and the same features for the probe."""
    by_place, by_name = case.make(dense()), case.make(Named())
    for x, y in vectors(8, [0, 1, 2, 3], size=12):
        by_place.learn(x, y)
        by_name.learn(x, y)
    mine = {n.removeprefix("inner."): t for n, t in by_name.model.state_dict().items()}
    assert_same(mine, by_place.model.state_dict())
    assert probe_accuracy(by_name, (x, y), (x, y)) == probe_accuracy(by_place, (x, y), (x, y))


class Rounded(nn.Module):
    """Ids that come as floating point."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = bag()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.long())


@EVERY_METHOD
def test_integers_are_given_to_the_model_as_they_are(method: str) -> None:
    learner = make(method, "int64")
    other = ocar.make_learner(method, Rounded(), **{
        "memory": 30, "replay_batch": 8, "passes": 2,
        **({"lr": 0.1} if method in ("er", "der++") else {}),
    })  # fmt: skip
    for x, y in stream("int64", 5, [0, 1, 2], size=12):
        learner.learn(x, y)
        other.learn(x.float(), y)
    inner = {n.removeprefix("inner."): t for n, t in other.model.state_dict().items()}
    assert_same(learner.model.state_dict(), inner)


def test_a_prediction_is_the_model_s() -> None:
    learner = make("er", "mixed", standardize=False)
    for x, y in stream("mixed", 4, [0, 1], size=12):
        learner.learn(x, y)
    pixels = x["image"].float() / 255
    learner.model.eval()
    assert torch.equal(learner.predict(x), learner.model(**x | {"image": pixels}))


def test_float_parts_are_standardised_each_by_its_own_scale() -> None:
    learner = make("er", "mixed", standardize=True)
    batches = list(stream("mixed", 5, [0, 1, 2], size=12))
    for x, y in batches:
        learner.learn(x, y)
    scales = learner.intake.inputs.parts
    assert set(scales) == {"image", "numbers", "weight"}
    for name, scale in scales.items():
        seen = torch.cat([x[name] for x, _ in batches]).double()
        seen = seen / 255 if name == "image" else seen
        dims = [0] if name != "image" else [0, 2, 3]
        mean = seen.mean(dims)
        assert torch.allclose(scale.values[1].flatten(), mean.flatten())
        deviation = seen.std(dims, correction=0)
        assert torch.allclose(scale.values[3].flatten(), deviation.flatten())
    inputs = learner.intake.normalize(as_inputs(x))
    assert torch.equal(inputs.parts["ids"], x["ids"])
    assert torch.equal(inputs.parts["mask"], x["mask"])


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_the_guard_looks_at_the_scale_of_float_parts() -> None:
    learner = make("ocar", "mixed")
    batches = list(stream("mixed", 5, [0, 1, 2], size=12))
    for x, y in batches[:3]:
        learner.learn(x, y)
    before = everything(learner)
    learner.learn(x | {"numbers": 1e9 * x["numbers"]}, y)
    assert learner.guarded.out_of_scale == 1
    after = everything(learner)
    for state in (before, after):
        for name in ("guard.counts", "guard.refused", "values"):
            state.pop(name)
    assert_same(before, after)
    learner.learn(x | {"ids": x["ids"] % 3}, y)
    assert learner.guarded.out_of_scale == 1


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_a_batch_of_copies_is_one_in_all_parts() -> None:
    learner = make("er", "tuple")
    (x, y) = next(stream("tuple", 1, [0, 1, 2], size=12))
    learner.learn(x, y)
    copied = tuple(part[:1].expand_as(part) for part in x)
    learner.learn((copied[0], x[1]), y)
    assert learner.guarded.copies == 0
    learner.learn(copied, y)
    assert learner.guarded.copies == 1


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
@EVERY_METHOD
def test_nothing_waits_for_a_device(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused batch, where its verdict is a value: weights and samples are as before."""
    learner, other = (make(method, "mixed", classes=(0, 1, 2, 3)) for _ in range(2))
    (first, y), (bad, y_bad) = stream("mixed", 2, [0, 1, 2, 3], size=12)
    for each in (learner, other):
        each.learn(first, y)
    never_wait(monkeypatch)
    with spoiled(learner):
        learner.learn(bad, y_bad)
    learner.check()
    mine, theirs = everything(learner), everything(other)
    for name in theirs:
        if name.startswith(("model.", "memory.columns.", "standardize.")):
            assert torch.equal(mine[name], theirs[name]), name


@pytest.mark.parametrize("kind", ["tuple", "dictionary", "mixed"])
def test_repeated_and_served_predictions(kind: str) -> None:
    learner = make("ocar", kind)
    serving = ocar.Serving(learner)
    ((x_held, _),) = stream(kind, 1, [0, 1, 2], seed=4, size=40)
    again = learner.predict_repeatedly(x_held)
    for x, y in stream(kind, 5, [0, 1, 2], size=12):
        learner.learn(x, y)
        served = serving.predict(x_held, chunk=7)
        assert served.classes == learner.classes
        assert torch.allclose(served.logits, learner.predict(x_held), atol=1e-6)
        assert torch.allclose(served.probabilities, learner.predict_proba(x_held), atol=1e-6)
        assert torch.equal(again(25, lambda logits: logits), learner.predict(rows(x_held, 25)))


def test_a_memory_policy_is_offered_structures() -> None:
    class Last(ocar.ReservoirMemory):
        def place(self, offer: Any) -> Any:
            assert isinstance(offer.x, Structure)
            assert len(offer.x) == len(offer.y)
            return super().place(offer)

    learner = make("er", "dictionary", memory=Last(20))
    for x, y in stream("dictionary", 4, [0, 1], size=12):
        learner.learn(x, y)
    assert len(learner.memory) == 20


# --- functions of the user's own -----------------------------------------------------------------


def test_one_s_own_normalisation_and_augmentation_get_what_was_given() -> None:
    def normalize(x: dict[str, Tensor]) -> dict[str, Tensor]:
        assert set(x) == {"ids", "mask"}
        return {"ids": x["ids"].long(), "mask": x["mask"]}

    def augment(x: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        dropped = torch.rand(x["mask"].shape, generator=generator) < 0.2
        kept = x["mask"] & ~dropped
        kept[:, 0] = True
        return {"ids": x["ids"], "mask": kept}

    learner = make("ocar", "dictionary", normalize=normalize, augment=augment)
    for x, y in stream("dictionary", 4, [0, 1], size=12):
        assert torch.isfinite(learner.learn(x, y).loss)
    assert learner.predict(x).shape == (12, 2)


@pytest.mark.parametrize("kind", ["int64", "tuple"])
@pytest.mark.parametrize("function", [{"augment": CropFlip()}, {"normalize": Normalize()}])
def test_functions_of_images_refuse_others(kind: str, function: dict[str, Any]) -> None:
    learner = make("er", kind, **function)
    (x, y) = next(stream(kind, 1, [0, 1]))
    before = everything(learner)
    with pytest.raises(InputError, match=r"(augment|normalize)=\w+ takes images, one tensor"):
        learner.learn(x, y)
    assert_same(everything(learner), before)


REFUSING = [c for c in ALONE if METHODS[c.method].settings.needs_numbers]


@pytest.mark.parametrize("kind", ["int64", "tuple", "dictionary"])
@pytest.mark.parametrize("case", REFUSING, ids=str)
def test_methods_of_images_refuse_others(case: Case, kind: str) -> None:
    learner = case.make(bag())
    before = everything(learner)
    (x, y) = next(stream(kind, 1, [0, 1]))
    with pytest.raises(InputError, match=r"takes one tensor of uint8 or floating point: .+Use "):
        learner.learn(x, y)
    assert_same(everything(learner), before)


def test_there_are_methods_that_refuse() -> None:
    assert {case.method for case in REFUSING} == {"ocm", "onpro", "rar", "scr"}


# --- errors --------------------------------------------------------------------------------------


def ids(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int64)


WRONG: list[tuple[Any, str]] = [
    (ids(4, 5), "x must be a dictionary of ids, mask, as before; given one tensor."),
    ((ids(4, 5), ids(4, 5)), "x must be a dictionary of ids, mask, as before; given a tuple of 2."),
    ({"ids": ids(4, 5)}, "as before; given a dictionary of ids."),
    (
        {"ids": ids(4, 7), "mask": ids(4, 5).bool()},
        "x['ids'] must hold samples of shape (5,) and torch.int64, as before; given (7,) and "
        "torch.int64. Sequences must all have one length: pad or cut them.",
    ),
    (
        {"ids": ids(4, 5), "mask": ids(4, 5)},
        "x['mask'] must hold samples of shape (5,) and torch.b",
    ),
    ({"ids": ids(4, 5), "mask": ids(3, 5).bool()}, "same number of samples, (n, ...); given x['i"),
    ({"ids": ids(4, 5), "mask": [[1, 0], [1]]}, "x['mask'] must be a tensor or an array (n, ...)"),
    ({"ids": ids(4, 5), "mask": np.array(["a"] * 4)}, "x['mask'] must hold numbers; given <U1"),
    (
        {"ids": ids(4, 5), "mask": torch.ones(4, 5) + 0j},
        "x['mask'] must be uint8, bool, integer or",
    ),
    (
        {"ids": ids(4, 5), 3: ids(4, 5)},
        "Invalid name 3 in x. A dictionary is given to the model by",
    ),
    ({"ids": ids(4, 5), "a b": ids(4, 5)}, "Invalid name 'a b' in x."),
    ({}, "x must have at least one part; given an empty dict."),
    ((), "x must have at least one part; given an empty tuple."),
    ("text", "x must be a tensor or an array (n, ...) of samples, or a tuple or dictionary"),
    ({"ids": {"a": ids(4, 5)}, "mask": ids(4, 5)}, "x['ids'] must be a tensor or an array"),
    ({"ids": torch.tensor(3), "mask": torch.tensor(3)}, "same number of samples"),
]


@pytest.mark.parametrize(("x", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_what_is_wrong_is_named(x: Any, message: str) -> None:
    learner = make("er", "dictionary")
    (good, y) = next(parts(1, [0, 1]))
    learner.learn({"ids": good["ids"], "mask": good["mask"]}, y)
    before = everything(learner)
    for act in (lambda: learner.learn(x, y[:4]), lambda: learner.predict(x)):
        with pytest.raises(InputError, match=re.escape(message)):
            act()
    assert_same(everything(learner), before)


def test_what_a_part_holds_is_named() -> None:
    learner = make("er", "mixed")
    (x, y) = next(parts(1, [0, 1]))
    broken = x["numbers"].clone()
    broken[2, 1] = float("nan")
    with pytest.raises(InputError, match=r"x\['numbers'\] must be finite; 1 of 10 samples"):
        learner.learn(x | {"numbers": broken}, y)
    with pytest.raises(InputError, match="The model cannot take samples of Structure"):
        learner.learn({"words": x["ids"]}, y)
    with pytest.raises(InputError, match="y must have one entry for each of 10 samples"):
        learner.learn(x, y[:3].numpy())
    with pytest.raises(InputError, match="y must hold numbers; given"):
        learner.learn(x, np.array(["a"] * 10))


def test_a_regression_has_no_probabilities() -> None:
    learner = ocar.ER(seeded(lambda: nn.Linear(6, 2)), lr=0.1, likelihood="gaussian", memory=10,
                      memory_kind="reservoir")  # fmt: skip
    x = np.random.default_rng(0).normal(size=(8, 6))
    learner.learn(x, 2 * x[:, :2])
    assert learner.memory.sample(1).x.dtype == torch.float64
    assert learner.memory.sample(1).y.dtype == torch.float32
    with pytest.raises(InputError, match="A regression has no probabilities of classes"):
        learner.predict_proba(x)
    answer = ocar.Serving(learner).predict(x)
    with pytest.raises(InputError, match="likelihood='categorical'"):
        answer.probabilities  # noqa: B018


@pytest.mark.parametrize("prediction", ["average", "both"])
def test_slow_weights_predict_of_dictionaries(prediction: str, tmp_path: Path) -> None:
    learner = make("ocar", "dictionary", prediction=prediction, average_rate=0.1)
    serving = ocar.Serving(learner)
    for x, y in stream("dictionary", 5, [0, 1, 2], size=12):
        learner.learn(x, y)
    logits = learner.predict(x)
    assert torch.allclose(serving.predict(x).logits, logits, atol=1e-6)
    assert torch.allclose(learner.predict_proba(x).sum(1), torch.ones(12))
    again = learner.predict_repeatedly(x)
    assert torch.equal(again(12, lambda outputs: outputs), logits)
    learner.save(tmp_path / "learner")
    loaded = ocar.load(tmp_path / "learner", bag())
    assert torch.equal(loaded.predict(x), logits)


def test_probabilities_of_no_class() -> None:
    learner = make("er", "int64")
    (x, _) = next(stream("int64", 1, [0]))
    assert learner.predict_proba(x).shape == (10, 0)
    assert ocar.Serving(learner).predict(x).probabilities.shape == (10, 0)


# --- arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8"])
def test_arrays_are_learned_as_tensors(dtype: str) -> None:
    one, other = (make("er", "array") for _ in range(2))
    for x, y in vectors(5, [0, 1, 2], size=12):
        x = (40 * x.abs()).clamp(max=255).to(getattr(torch, dtype))
        one.learn(x, y)
        other.learn(x.numpy(), y.numpy())
    assert_same(everything(one), everything(other))


def test_arrays_that_torch_cannot_share() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen = values.copy()
    frozen.flags.writeable = False
    for array in (values[:, ::-1], frozen, values.astype(">f4")):
        found = as_inputs(array)
        assert isinstance(found, Tensor)
        assert found.tolist() == array.tolist()


# --- the type itself -----------------------------------------------------------------------------


def test_rows_of_a_structure() -> None:
    x = as_inputs((torch.arange(6).view(3, 2), torch.arange(3)))
    assert isinstance(x, Structure)
    mask = torch.tensor([True, False, True])
    for rows_ in (slice(1, 3), torch.tensor([2, 0]), mask):
        taken = x[rows_]
        assert torch.equal(taken.parts["0"], x.parts["0"][rows_])
        assert torch.equal(taken.parts["1"], x.parts["1"][rows_])
    joined = cat(x.split(2))
    assert isinstance(joined, Structure)
    assert torch.equal(joined.parts["0"], x.parts["0"])
    assert [len(piece) for piece in x.split(2)] == [2, 1]
    assert [len(piece) for piece in x[:0].split(2)] == [0]
    assert x.nbytes == 9 * 8
    assert call(lambda a, b: (a, b), x)[1] is x.parts["1"]
    assert (
        call(lambda b, a: (a, b), Structure({"a": x.parts["0"], "b": x.parts["1"]}))[0]
        is x.parts["0"]
    )


def test_tuples_have_more_than_nine_parts() -> None:
    x = as_inputs(tuple(torch.full((2, 1), i) for i in range(12)))
    assert [int(part[0]) for part in call(lambda *parts: parts, x)] == list(range(12))
