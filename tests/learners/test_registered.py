"""Parts of one's own, written outside of the package: used, saved, loaded, run from a shell."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import test_every_method as check_suite
import torch
from cases import Case
from torch import Tensor
from toys import (
    PLUGINS,
    assert_same,
    convnet,
    everything,
    images,
    mlp,
    names_kept,
    plugin,
    registered,
    vectors,
)
from twins import assert_resumes

import ocar
from ocar.errors import CheckpointError, ConfigError
from ocar.learner import Learner
from ocar.memory import MEMORIES
from ocar.methods.registry import METHODS, TRANSFORMS
from ocar.models import MODELS
from ocar.registry import load_plugins
from ocar.state import load_state

MOST_LINES = 40
"""A policy of one's own is shorter than this."""


@pytest.fixture
def hard() -> Iterator[ModuleType]:
    with plugin("hard_memory") as module:
        yield module


@pytest.fixture
def own() -> Iterator[ModuleType]:
    with plugin("focal_clip") as module:
        yield module


def run_python(code: str, *arguments: Any, path: Path = PLUGINS) -> str:
    """The output of a new process that finds modules in one more folder."""
    paths = [str(path), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


GO_ON = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
from toys import mlp, vectors
import ocar
names, start, end = sys.argv[2].split(), sys.argv[3], sys.argv[4]
for name in names:
    importlib.import_module(name)
learner = ocar.load(start, mlp(units=2))
for x, y in vectors(4, [1, 3, 5], seed=7):
    learner.learn(x, y)
learner.save(end)
"""


def assert_goes_on_in_a_new_process(learner: Learner, names: str, folder: Path) -> None:
    """Restored by a process that imports some modules, it does what it would have done here."""
    learner.save(folder / "start")
    run_python(GO_ON, Path(__file__).parent, names, folder / "start", folder / "end")
    for x, y in vectors(4, [1, 3, 5], seed=7):
        learner.learn(x, y)
    restored = ocar.load(folder / "end", mlp(units=2))
    assert_same(everything(restored), everything(learner))
    assert repr(restored) == repr(learner)


# --- a memory that keeps what is hard to learn ---------------------------------------------------


def test_a_policy_is_short_and_uses_what_is_public() -> None:
    text = (PLUGINS / "hard_memory.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < MOST_LINES
    tree = ast.walk(ast.parse(text))
    imports = [node for node in tree if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {
        name
        for node in imports
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert modules == {"collections.abc", "torch", "ocar", "ocar.memory"}
    names = [alias.name for node in imports for alias in node.names]
    assert not any(name.startswith("_") for name in names)


def learn_and_note(learner: Learner, count: int) -> dict[int, float]:
    """The loss of every sample when it was offered, by a number that is part of the sample."""
    losses: dict[int, float] = {}
    known = learner.objective.known

    def noted(outputs: Tensor, y: Tensor, active: Tensor | None) -> dict[str, Tensor]:
        found = known(outputs, y, active)
        for loss in found["loss"].tolist():
            losses[len(losses)] = loss
        return found

    learner.objective.known = noted  # type: ignore[method-assign]
    number = 0
    for labels in ([0, 1], [2, 3], [0, 4]):
        for x, y in vectors(count, labels):
            x[:, 0] = torch.arange(number, number + len(x)) / 100
            number += len(x)
            learner.learn(x, y)
    return losses


@pytest.mark.parametrize("method", ["er", "er-ace", "ocar", "der++", "scr"])
def test_the_samples_with_the_largest_loss_stay(method: str, hard: ModuleType) -> None:
    learner = Case(method).make(mlp(), memory=25, memory_kind="hard")
    assert type(learner.memory) is hard.HardMemory
    losses = learn_and_note(learner, 4)
    assert len(losses) == 120
    held = learner.memory.gather(learner.memory.slots).x[:, 0]
    kept = sorted((held * 100).round().long().tolist())
    assert kept == sorted(sorted(losses, key=lambda i: -losses[i])[:25])
    assert sorted(learner.memory.losses.tolist()) == pytest.approx(
        sorted(losses.values())[-25:], rel=1e-6
    )


def test_the_loss_is_that_of_the_model_in_eval_mode(hard: ModuleType) -> None:
    """After the batch was learned, of the samples as they are."""
    learner = ocar.ER(
        convnet(), lr=0.05, memory=hard.HardMemory(40), augment=ocar.CropFlip(padding=2)
    )
    x, y = next(images(1, [0, 1, 2]))
    learner.learn(x, y)
    logits, units = learner.predict(x), torch.tensor([learner.classes.index(i) for i in y])
    expected = torch.nn.functional.cross_entropy(logits, units, reduction="none")
    slots = learner.memory.slots
    held = learner.memory.gather(slots).x
    order = [int((x == image).flatten(1).all(1).nonzero()) for image in held]
    torch.testing.assert_close(learner.memory.losses[slots], expected[order])


@pytest.mark.parametrize("given", ["name", "object"])
def test_it_is_saved_and_goes_on_to_the_bit(given: str, hard: ModuleType, tmp_path: Path) -> None:
    parts = (
        {"memory": 20, "memory_kind": "hard"}
        if given == "name"
        else {"memory": hard.HardMemory(20)}
    )
    learner = ocar.OCAR(mlp(units=2), lr=0.02, tau_step=1e-6, ema=0.2, **parts)
    for x, y in vectors(5, [0, 1, 2]):
        learner.learn(x, y)
    batches = list(vectors(5, [0, 3, 4], seed=1))
    restored = assert_resumes(learner, batches, mlp(units=2), tmp_path)
    assert type(restored.memory) is hard.HardMemory
    assert_goes_on_in_a_new_process(learner, "hard_memory", tmp_path)


@pytest.mark.usefixtures("hard")
def test_without_its_module_a_file_says_what_is_missing(tmp_path: Path) -> None:
    ocar.ER(mlp(), lr=0.1, memory=20, memory_kind="hard").save(tmp_path / "ckpt")
    code = (
        "import sys, torch, ocar\n"
        "try:\n"
        "    ocar.load(sys.argv[1], torch.nn.Linear(6, 4))\n"
        "except ocar.OcarError as error:\n"
        "    print(type(error).__name__, error)"
    )
    said = run_python(code, tmp_path / "ckpt")
    assert said.startswith("CheckpointError")
    assert (
        "Unknown memory 'hard'. There are class-balanced, exponential, reservoir, window." in said
    )


@pytest.mark.usefixtures("hard")
def test_a_refused_batch_is_not_offered() -> None:
    learner = ocar.ER(mlp(), lr=0.1, memory=20, memory_kind="hard")
    batches = list(vectors(3, [0, 1, 2]))
    for x, y in batches[:2]:
        learner.learn(x, y)
    before = learner.memory.state_dict()
    with pytest.warns(ocar.guard.GuardWarning):
        learner.learn(batches[2][0] * 1e9, batches[2][1])
    assert_same(learner.memory.state_dict(), before)


def command(*words: str, path: Path = PLUGINS) -> str:
    code = "import sys; from ocar_lab.cli import main; sys.exit(main(sys.argv[1:]))"
    return run_python(code, *words, path=path)


def knows_plugins() -> bool:
    return any("--plugin" in command(*words) for words in (("--help",), ("run", "--help")))


def test_it_runs_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("tyro", reason="the command line is not installed")
    if not knows_plugins():
        pytest.skip("ocar run has no --plugin")
    words = ["run", "split-digits", "er", "--memory-kind", "hard", "--max-batches", "6"]
    words += ["--no-probe", "--device", "cpu", "--out", str(tmp_path)]
    command(*words, "--plugin", "hard_memory")
    (config,) = tmp_path.rglob("config.json")
    assert "hard" in json.dumps(json.loads(config.read_text(encoding="utf-8")))
    (checkpoint,) = tmp_path.rglob("checkpoint.safetensors")
    tensors, _ = load_state(checkpoint)
    (losses,) = (t for name, t in tensors.items() if name.endswith("memory.policy.losses"))
    assert int((losses >= 0).sum()) == 60
    before = checkpoint.stat().st_mtime_ns
    assert "memory_kind=hard" in command(*words, "--plugin", "hard_memory")
    assert checkpoint.stat().st_mtime_ns == before, "a finished run is not run again"


# --- a method and a transform of one's own -------------------------------------------------------


@pytest.mark.usefixtures("own")
def test_a_method_of_ones_own_is_run_by_its_name() -> None:
    batches = list(vectors(6, [0, 1, 2]))
    plain, other, focal = (
        ocar.make_learner("er", mlp(), lr=0.1, memory=30),
        ocar.make_learner("focal", mlp(), lr=0.1, memory=30, gamma=0.0),
        ocar.make_learner("focal", mlp(), lr=0.1, memory=30),
    )
    for learner in (plain, other, focal):
        for x, y in batches:
            learner.learn(x, y)
    weights = [learner.model[0].weight for learner in (plain, other, focal)]
    torch.testing.assert_close(weights[0], weights[1])
    assert (weights[0] - weights[2]).norm() > 1e-3 * weights[0].norm()
    with pytest.raises(ConfigError, match=r"Invalid gamma=-1\. Must be at least 0\."):
        ocar.make_learner("focal", mlp(), lr=0.1, gamma=-1)
    with pytest.raises(ConfigError, match=r"has no setting gama\. Did you mean 'gamma'\? It has"):
        ocar.make_learner("focal", mlp(), lr=0.1, gama=1)


@pytest.mark.usefixtures("own")
def test_a_transform_of_ones_own_goes_with_every_method() -> None:
    for method in ("er", "er-ace", "der++", "scr", "focal"):
        loose, tight = (
            ocar.make_learner(method, mlp(), transform="clip", lr=0.1, memory=30, times=times)
            for times in (1e9, 0.01)
        )
        plain = ocar.make_learner(method, mlp(), lr=0.1, memory=30)
        for learner in (loose, tight, plain):
            for x, y in vectors(4, [0, 1, 2]):
                learner.learn(x, y)
        weights = [learner.model[0].weight for learner in (loose, tight, plain)]
        assert torch.equal(weights[0], weights[2]), method
        moved = [float((w - mlp()[0].weight).detach().norm()) for w in weights]
        assert moved[1] < 0.2 * moved[0], method


@pytest.mark.parametrize(
    ("method", "transform"), [("focal", None), ("er", "clip"), ("focal", "clip"), ("focal", "ocar")]
)
def test_they_keep_the_promises_of_every_method(
    method: str, transform: str | None, own: ModuleType, tmp_path: Path
) -> None:
    case = Case(method, transform)
    check_suite.test_learns_classes_that_arrive_one_after_another(case, "mlp")
    check_suite.test_predict_changes_nothing(case, {})
    for toy in ("mlp", "convnet"):
        folder = tmp_path / toy
        check_suite.test_a_run_can_be_repeated_and_interrupted(case, toy, folder)
    check_suite.test_a_learner_can_be_taken_back(case)
    check_suite.test_wrong_input_leaves_it_untouched(case, True)
    check_suite.test_repr_shows_every_setting(case)


@pytest.mark.usefixtures("own")
def test_they_are_saved_and_loaded_in_a_new_process(tmp_path: Path) -> None:
    learner = ocar.make_learner(
        "focal", mlp(units=2), transform="clip", lr=0.1, memory=30, gamma=1.5, times=0.5
    )
    for x, y in vectors(5, [0, 1, 2]):
        learner.learn(x, y)
    assert_goes_on_in_a_new_process(learner, "focal_clip", tmp_path)
    assert int(learner.transform.count) == learner.steps


@pytest.mark.usefixtures("own")
def test_the_guard_rolls_back_what_a_transform_declares() -> None:
    learner = ocar.make_learner("focal", mlp(), transform="clip", lr=0.1, memory=30)
    for x, y in vectors(3, [0, 1, 2]):
        learner.learn(x, y)
    before = everything(learner)
    handle = learner.model[0].weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.warns(ocar.guard.GuardWarning, match="1 skipped for not being finite"):
        learner.learn(x, y)
    handle.remove()
    after = everything(learner)
    for name in ("transform.mean", "transform.count", "model.0.weight", "memory.columns.x"):
        assert torch.equal(after[name], before[name]), name


# --- entry points --------------------------------------------------------------------------------

ENTRY = """
import ocar
from ocar.memory import ReservoirMemory
from ocar.methods.er import ERSettings
from ocar.methods.ngd import NGDSettings
from ocar.curvature import KFAC

class Memory(ReservoirMemory):
    pass

class Settings(ERSettings):
    "A method of a package."

class Transform(NGDSettings):
    pass

class Curvature(KFAC):
    pass

for thing in (Memory, Settings, Transform, Curvature):
    ocar.register("packaged", thing)
ocar.register("packaged", lambda image_shape, classes: ocar.make_model(
    "mlp", image_shape=image_shape, classes=classes))
"""


def install(folder: Path, name: str, code: str) -> Path:
    """A distribution whose entry point is a module."""
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ocar.plugins]\n{name} = {name}\n")
    return folder


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for distributions; what they register is forgotten afterwards."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    load_plugins.cache_clear()
    before = set(sys.modules)
    with names_kept():
        yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]
    load_plugins.cache_clear()


FINDERS = {
    "memory": lambda: ocar.ER(mlp(), lr=0.1, memory_kind="packaged").memory,
    "method": lambda: ocar.make_learner("packaged", mlp(), lr=0.1).settings,
    "transform": lambda: (
        ocar.make_learner(
            "er", mlp(), transform="packaged", lr=0.1, damping=0.1, ema=0.1
        ).transform_settings
    ),
    "curvature": lambda: (
        ocar.OCAR(mlp(), lr=0.1, tau_step=0.0, ema=0.1, curvature="packaged").transform.curvature
    ),
    "model": lambda: ocar.make_model("packaged", image_shape=(1, 2, 2)),
}


@pytest.mark.parametrize("what", FINDERS)
def test_an_unknown_name_loads_the_plugins_that_are_installed(what: str, packages: Path) -> None:
    with pytest.raises(ConfigError, match="packaged"):
        FINDERS[what]()
    load_plugins.cache_clear()
    install(packages, "packaged_parts", ENTRY)
    assert "packaged_parts" not in sys.modules
    ocar.make_learner("er", mlp(), lr=0.1)
    assert "packaged_parts" not in sys.modules, "a name that is known needs no plugin"
    found = FINDERS[what]()
    if what != "model":
        assert type(found).__module__ == "packaged_parts"
    for table in (MEMORIES, METHODS, TRANSFORMS, MODELS):
        assert "packaged" in table


def test_a_plugin_that_fails_is_named(packages: Path) -> None:
    install(packages, "broken_parts", "raise RuntimeError('no such thing')")
    with pytest.raises(ConfigError, match=r"The plugin 'broken_parts' cannot be loaded: no such"):
        ocar.make_learner("unknown", mlp(), lr=0.1)


@pytest.mark.usefixtures("packages")
def test_without_plugins_an_unknown_name_is_unknown() -> None:
    with pytest.raises(ConfigError, match=r"Unknown memory 'packaged'\. There are class-balanced"):
        FINDERS["memory"]()


def test_a_file_with_a_packaged_part_is_loaded_in_a_new_process(
    packages: Path, tmp_path: Path
) -> None:
    install(packages, "packaged_parts", ENTRY)
    learner = ocar.ER(mlp(units=2), lr=0.1, memory=20, memory_kind="packaged")
    for x, y in vectors(3, [0, 1, 2]):
        learner.learn(x, y)
    learner.save(tmp_path / "start")
    run_python(
        GO_ON, Path(__file__).parent, "", tmp_path / "start", tmp_path / "end", path=packages
    )
    for x, y in vectors(4, [1, 3, 5], seed=7):
        learner.learn(x, y)
    assert_same(everything(ocar.load(tmp_path / "end", mlp(units=2))), everything(learner))


def test_a_name_that_was_registered_here_does_not_help_elsewhere(tmp_path: Path) -> None:
    """The negative control of all that goes on in a new process."""
    with registered(here=MEMORIES["reservoir"]):
        learner = ocar.ER(mlp(units=2), lr=0.1, memory=20, memory_kind="here")
        assert learner.settings.memory_kind == "here"
        learner.save(tmp_path / "start")
    with pytest.raises(CheckpointError, match="Unknown memory 'here'"):
        ocar.load(tmp_path / "start", mlp(units=2))
