"""Parts of a learner as objects do what their names do, and can be saved if they have a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import assert_same, convnet, everything, images, mlp, registered, vectors

import ocar
from ocar.curvature import EKFAC, FOOF, KFAC, DenseFisher
from ocar.errors import CheckpointError, ConfigError
from ocar.learner import Learner
from ocar.memory import (
    MEMORIES,
    ClassBalancedMemory,
    ExponentialMemory,
    Memory,
    Offer,
    Placement,
    ReservoirMemory,
    WindowMemory,
)
from ocar.methods.context import Context
from ocar.methods.er import ERSettings
from ocar.methods.objective import Objective
from ocar.methods.registry import METHODS, Method
from ocar.methods.transform import Transform, TransformSettings
from ocar.models import MODELS
from ocar.registry import Registry
from ocar.state import load_state, save_state
from ocar.streams.benchmarks import get_benchmark

OCAR = {"lr": 0.02, "tau_step": 1e-6, "ema": 0.2, "passes": 2, "replay_batch": 8}


def learned(learner: Learner, *, batches: int = 5) -> Learner:
    for labels in ([0, 1], [2, 3, 4]):  # the head doubles
        for x, y in vectors(batches, labels, size=8):
            learner.learn(x, y)
    return learner


def same_state(one: Learner, other: Learner) -> None:
    """All but the settings, which say how the parts were given."""
    ours, theirs = everything(one), everything(other)
    del ours["values"], theirs["values"]
    assert_same(ours, theirs)


# --- by object and by name -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thing", "name"),
    [(KFAC(), "kfac"), (EKFAC(), "ekfac"), (FOOF(), "foof"), (DenseFisher(), "dense")],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_curvature_is_that_of_its_name(thing: Any, name: str) -> None:
    options = {"fisher": "exact"} if name == "dense" else {}  # a name takes the settings' root
    by_name = learned(ocar.OCAR(mlp(), curvature=name, memory=40, **OCAR, **options))
    by_object = learned(ocar.OCAR(mlp(), curvature=thing, memory=40, **OCAR))
    same_state(by_object, by_name)


@pytest.mark.parametrize("memory", [kind(20) for kind in MEMORIES.values()])
def test_a_memory_is_that_of_its_name(memory: Memory) -> None:
    name = MEMORIES.name_of(type(memory))
    by_name = learned(ocar.OCAR(mlp(), memory=20, memory_kind=name, **OCAR))
    by_object = learned(ocar.OCAR(mlp(), memory=memory, **OCAR))
    assert by_object.settings.memory_kind == name
    same_state(by_object, by_name)
    assert len(memory) == 0, "the object is a specification, and is never filled"
    same_state(learned(ocar.OCAR(mlp(), memory=memory, **OCAR)), by_name)


@dataclass(eq=False, repr=False)
class OftenEKFAC(EKFAC):
    """E-KFAC whose basis is renewed every other batch."""

    basis_every: int = field(default=2, kw_only=True)


def test_options_of_an_object_are_heard() -> None:
    often = learned(ocar.OCAR(mlp(), curvature=EKFAC(basis_every=2), memory=40, **OCAR))
    with registered(often=OftenEKFAC):
        same_state(learned(ocar.OCAR(mlp(), curvature="often", memory=40, **OCAR)), often)
    seldom = learned(ocar.OCAR(mlp(), curvature=EKFAC(basis_every=3), memory=40, **OCAR))
    assert not torch.equal(seldom.model[0].weight, often.model[0].weight)
    exact = learned(ocar.OCAR(mlp(), curvature=EKFAC(fisher="exact"), memory=40, **OCAR))
    named = ocar.OCAR(mlp(), curvature="ekfac", fisher="exact", memory=40, **OCAR)
    same_state(learned(named), exact)


def test_the_learner_decides_about_seed_extras_and_device_of_a_memory() -> None:
    given = ReservoirMemory(20, extras=("other",), seed=9)
    learner = ocar.make_learner("der", mlp(), lr=0.1, memory=given, seed=3)
    assert learner.memory.extras == ("logits", "known")
    assert learner.memory.seed == 3
    assert learner.memory.capacity == 20


@pytest.mark.parametrize("transform", ["ngd", "ocar"])
def test_objects_go_with_every_transform_that_has_a_curvature(transform: str) -> None:
    own = {"damping": 0.02} if transform == "ngd" else {"tau_step": 0.0}
    common = {"lr": 0.02, "ema": 0.2, "memory": 30, **own}
    learners = [
        ocar.make_learner("er-ace", convnet(), transform=transform, curvature=kind, **common)
        for kind in ("foof", FOOF())
    ]
    for learner in learners:
        for x, y in images(4, [0, 1, 2]):
            learner.learn(x, y)
    same_state(*learners)


# --- saved and loaded ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        {"curvature": EKFAC(basis_every=2), "memory": ReservoirMemory(50)},
        {"curvature": KFAC(fisher="sampled(2)", exclude=("0",)), "memory": 20},
        {"curvature": FOOF(), "memory": ClassBalancedMemory(20)},
        {"curvature": DenseFisher(fisher="sketched(2)"), "memory": WindowMemory(20)},
        {"curvature": KFAC(), "memory": ExponentialMemory(20, horizon=25)},
    ],
    ids=lambda parts: type(parts["curvature"]).__name__,
)
def test_a_learner_made_of_objects_goes_on_to_the_bit(
    parts: dict[str, Any], tmp_path: Path
) -> None:
    learner = learned(ocar.OCAR(mlp(units=2), **parts, **OCAR), batches=3)
    learner.save(tmp_path / "ckpt")
    restored = ocar.load(tmp_path / "ckpt", mlp(units=2))
    assert repr(restored) == repr(learner)
    assert type(restored.transform.curvature) is type(parts["curvature"])
    assert_same(everything(restored), everything(learner))
    assert_same(everything(learned(restored)), everything(learned(learner)))


def test_a_schedule_of_an_object_cannot_be_saved(tmp_path: Path) -> None:
    """The learner gives its own damping, but the file holds the object as it was given."""
    curvature = KFAC(damping=lambda step: 0.1 + step)
    learner = learned(ocar.OCAR(mlp(), curvature=curvature, memory=20, **OCAR))
    with pytest.raises(CheckpointError, match=r"cannot hold the function .*<lambda>"):
        learner.save(tmp_path / "ckpt")


class LatestMemory(Memory):
    """Keeps the latest samples, and an argument of its own.

    Args:
        every: Of every so many samples one is kept.
        capacity: See :class:`Memory`.
        extras: See there.
        seed: See there.
        device: See there.
    """

    def __init__(
        self,
        capacity: int,
        *,
        every: int = 1,
        extras: Sequence[str] = (),
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.every = every
        super().__init__(capacity, extras=extras, seed=seed, device=device)

    def place(self, offer: Offer) -> Placement:
        rows = range(0, len(offer), self.every)
        return Placement({(self.seen + row) // self.every % self.capacity: row for row in rows})


class PassingMemory(LatestMemory):
    """Passes on what it does not know."""

    def __init__(self, capacity: int, *, shift: int = 0, **rest: Any) -> None:
        self.shift = shift
        super().__init__(capacity, **rest)


class ForgetfulMemory(PassingMemory):
    """Does not keep an argument."""

    def __init__(self, capacity: int, *, lost: int = 0, **rest: Any) -> None:
        super().__init__(capacity, **rest)


def test_a_memory_that_passes_arguments_on_has_them_all() -> None:
    memory = PassingMemory(20, every=2, shift=3, seed=4)
    device = torch.device("cpu")
    expected = {"capacity": 20, "shift": 3, "every": 2, "extras": (), "seed": 4, "device": device}
    assert memory.arguments() == expected
    assert memory.bind(seed=5).arguments() == {**expected, "seed": 5}


def test_a_memory_that_does_not_keep_an_argument_is_named() -> None:
    with pytest.raises(ConfigError, match=r"ForgetfulMemory takes 'lost' and has no attribute"):
        ocar.ER(mlp(), lr=0.1, memory=ForgetfulMemory(20))


@dataclass(eq=False, repr=False)
class OwnCurvature(KFAC):
    """A kind of curvature without a name."""


@dataclass(frozen=True, kw_only=True)
class OwnSettings(ERSettings):
    """A method without a name."""


@dataclass(frozen=True, kw_only=True)
class OwnTransformSettings(TransformSettings):
    """A transform without a name."""

    def make(self, context: Context, objective: Objective) -> Transform:
        return Transform()


UNNAMED = {
    "LatestMemory": lambda: ocar.ER(mlp(), lr=0.1, memory=LatestMemory(20, every=2)),
    "PassingMemory": lambda: ocar.ER(mlp(), lr=0.1, memory=PassingMemory(20, every=2, shift=3)),
    "OwnCurvature": lambda: ocar.OCAR(mlp(), curvature=OwnCurvature(), memory=20, **OCAR),
    "OwnSettings": lambda: Learner(mlp(), OwnSettings(lr=0.1, memory=20)),
    "OwnTransformSettings": lambda: Learner(
        mlp(), ERSettings(lr=0.1, memory=20), transform=OwnTransformSettings()
    ),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_what_has_no_name_learns_and_cannot_be_saved(name: str, tmp_path: Path) -> None:
    learner = learned(UNNAMED[name]())
    assert learner.predict(next(vectors(1, [0]))[0]).shape == (10, 5)
    with pytest.raises(CheckpointError, match=rf'{name} has no name.*ocar\.register\("a-name", '):
        learner.save(tmp_path / "ckpt")
    assert list(tmp_path.iterdir()) == []
    with registered(mine=globals()[name]):
        learner.save(tmp_path / "ckpt")
        restored = ocar.load(tmp_path / "ckpt", mlp())
        same_state(learned(restored), learned(learner))
    with pytest.raises(CheckpointError, match=r"does not describe a learner: Unknown .* 'mine'\."):
        ocar.load(tmp_path / "ckpt", mlp())


# --- names ---------------------------------------------------------------------------------------


def test_a_method_may_be_registered_with_its_transform() -> None:
    entry = Method(settings=OwnSettings, transform=OwnTransformSettings, about="Both of one's own.")
    with registered(own=entry):
        learner = ocar.make_learner("own", mlp(), lr=0.1)
        assert type(learner.settings) is OwnSettings
        assert type(learner.transform_settings) is OwnTransformSettings
        assert METHODS["own"].about == "Both of one's own."
    with registered(own=OwnSettings):
        assert METHODS["own"].about == "A method without a name."


def test_models_and_benchmarks_have_names_too() -> None:
    def tiny(image_shape: tuple[int, int, int], classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(image_shape[1], classes))

    digits = get_benchmark("split-digits")
    with registered(tiny=tiny, mine=digits):
        model = ocar.make_model("tiny", image_shape=(1, 6, 1), classes=3)
        assert model[1].weight.shape == (3, 6)
        assert get_benchmark("mine") is digits
    assert "tiny" not in MODELS


@pytest.mark.parametrize(
    ("name", "thing"),
    [
        ("er", OwnSettings),
        ("ocar", OwnTransformSettings),
        ("kfac", OwnCurvature),
        ("reservoir", LatestMemory),
        ("mlp", lambda image_shape, classes: mlp()),
        ("convex", get_benchmark("split-digits")),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_name_is_taken_once(name: str, thing: Any) -> None:
    with registered():
        with pytest.raises(ConfigError, match=rf"There is another \w+ {name!r}"):
            ocar.register(name, thing)
        ocar.register("free", thing)
        assert ocar.register("free", thing) is thing, "the same thing again is no other"


def test_only_parts_of_a_learner_can_be_registered() -> None:
    with pytest.raises(ConfigError, match="Path is no method, transform, curvature or memory"):
        ocar.register("path", Path)
    with pytest.raises(ConfigError, match=r"Cannot register 7: see help\(ocar.register\)"):
        ocar.register("seven", 7)


def test_a_registry_says_which_names_there_are() -> None:
    table = Registry("colour", {"red": 1, "green": 2})
    try:
        assert table.find("red") == 1
        assert table.name_of(2) == "green"
        assert table.name_of(3) is None
        with pytest.raises(ConfigError, match=r"Unknown colour 'gren'\. Did you mean 'green'\? "):
            table.find("gren")
        with pytest.raises(ConfigError, match=r"Unknown colour 'x'\. There are red, green\."):
            table.find("x")
    finally:
        from ocar.registry import REGISTRIES

        del REGISTRIES["colour"]


# --- damaged files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ({"registered": "memory", "name": "lost", "arguments": {}}, "Unknown memory 'lost'"),
        ({"registered": "memory", "name": "reservoir"}, "Invalid arguments of 'reservoir'"),
        ({"registered": "memory", "arguments": [7]}, "does not describe a learner"),
        (
            {"registered": "memory", "name": "reservoir", "arguments": {"capacity": 10**12}},
            "says memory=1000000000000 and has at most 20 slots",
        ),
        (
            {"registered": "memory", "name": "reservoir", "arguments": {"capacity": 20, "x": 1}},
            "Invalid arguments of 'reservoir': .*unexpected keyword",
        ),
        (
            {"registered": "model", "name": "mlp", "arguments": {"classes": 9}},
            "Invalid description of a part",
        ),
        ({"registered": "method", "name": "er", "arguments": {}}, "Invalid description of a part"),
        ({"registered": "nothing", "name": "er"}, "Invalid description of a part"),
    ],
)
def test_a_damaged_description_of_a_part_is_refused(
    memory: dict[str, Any], message: str, tmp_path: Path
) -> None:
    learner = learned(ocar.ER(mlp(), lr=0.1, memory=ReservoirMemory(20)))
    learner.save(tmp_path / "ckpt")
    tensors, values = load_state(tmp_path / "ckpt")
    values["settings"]["memory"] = memory
    save_state(tmp_path / "bad", tensors, values)
    with pytest.raises(CheckpointError, match=message):
        ocar.load(tmp_path / "bad", mlp())
