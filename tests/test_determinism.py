"""The same seed gives the same run to the bit, another seed another; global randomness is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_runs import assert_same_run, records, small
from torch import Tensor

import ocar
import ocar_lab
from ocar.methods.registry import METHODS
from ocar.state import load_state, without_prefix
from ocar.streams.benchmarks import make_stream
from ocar_lab.experiment import Ended, Job, RunConfig, run_many
from ocar_lab.experiment.determinism import deterministic_algorithms
from ocar_lab.runs.folder import CHECKPOINT

QUICK: dict[str, dict[str, Any]] = {"gdumb": {"epochs": 2}}


def config(method: str, seed: int = 0) -> RunConfig:
    settings = QUICK.get(method, {})
    return small(method=method, settings=settings, seed=seed, max_batches=3, probe=False)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every method, one after another."""
    return do_all(tmp_path_factory.mktemp("alone"), workers=1)


def do_all(out: Path, *, workers: int, seed: int = 0) -> Path:
    jobs = [Job(config=config(method, seed), out=out) for method in METHODS]
    ends = [m for m in run_many(jobs, workers=workers) if isinstance(m, Ended)]
    assert {m.state for m in ends} == {"finished"}
    assert len(ends) == len(METHODS)
    return out


def test_twice_the_same(alone: Path, tmp_path: Path) -> None:
    for method in METHODS:
        again = ocar_lab.run(config(method), out=tmp_path)
        assert_same_run(alone / config(method).folder(), again.path)


@pytest.mark.long
def test_any_number_of_workers_gives_the_same(alone: Path, tmp_path: Path) -> None:
    do_all(tmp_path, workers=2)
    for method in METHODS:
        folder = config(method).folder()
        assert_same_run(alone / folder, tmp_path / folder)
        assert len(records(alone / folder)) >= 2  # there was something to compare


def state(out: Path, method: str, seed: int) -> dict[str, Tensor]:
    tensors, _ = load_state(out / config(method, seed).folder() / CHECKPOINT)
    return without_prefix("learner", tensors)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> set[str]:
    return {n for n, t in one.items() if n in other and torch.equal(t, other[n])}


def test_other_seeds_give_other_weights_memories_and_draws(alone: Path, tmp_path: Path) -> None:
    do_all(tmp_path, workers=1, seed=1)
    for method in METHODS:
        one, other = state(alone, method, 0), state(tmp_path, method, 1)
        equal = same(one, other)
        must_differ = {n for n in one if n.endswith("generator") or n.startswith("generator.")}
        must_differ |= {"memory.columns.x", "memory.columns.y"}
        must_differ |= {n for n in one if n.startswith("model.") and n.endswith("weight")}
        assert must_differ <= one.keys()
        assert not must_differ & equal, method
        if method != "gdumb":  # which measures nothing before the end of a task
            first, second = config(method, 0).folder(), config(method, 1).folder()
            assert records(alone / first) != records(tmp_path / second)


def test_seeds_are_independent() -> None:
    """Streams and weights of many seeds are all different, and weights not correlated."""
    orders, weights = set(), []
    for seed in range(12):
        stream = make_stream("split-digits", seed=seed)
        batch = next(iter(stream))
        orders.add((tuple(batch.y.tolist()), batch.x.numpy().tobytes()))
        model = ocar.make_model("mlp", image_shape=(1, 8, 8), seed=seed)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters() if p.dim() > 1]))
    assert len(orders) == 12
    correlation = torch.corrcoef(torch.stack(weights)).fill_diagonal_(0).abs().max()
    # Of independent numbers it is about 4 / √n at most.
    assert float(correlation) < 6 / len(weights[0]) ** 0.5


UNTOUCHED = r"""
import contextlib, importlib, io, pickle, pkgutil, random, sys, tempfile, warnings
from pathlib import Path

import numpy as np
import torch

def states():
    return {
        "random": random.getstate(),
        "numpy": pickle.dumps(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
    }

before = states()

def check(what):
    after = states()
    changed = [name for name, value in before.items() if after[name] != value]
    if changed:
        sys.exit(f"{what} touches the random state of {', '.join(changed)}")
    used.append(what)

used = []
import ocar

check("import ocar")
for name in ocar.__all__:
    getattr(ocar, name)
    check(f"ocar.{name}")
import ocar_lab
for package in (ocar, ocar_lab):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name != "ocar_lab.__main__":
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
            check(f"import {module.name}")

from ocar.augment import ColorJitter, Grey, HorizontalFlip, ResizedCrop
from ocar_lab.experiment import Job, run_many
from ocar.methods.registry import METHODS
from ocar.models import MODELS
from ocar.evaluate.probe import probe_stream
from ocar.rng import make_generator
from ocar_lab.runs import find_runs
from ocar.streams.benchmarks import BENCHMARKS

def model():
    return ocar.make_model("mlp", image_shape=(1, 8, 8), seed=3)

for name in MODELS:
    ocar.make_model(name, image_shape=(3, 32, 32))
    check(f"make_model {name}")

stream = ocar.make_stream("split-digits", seed=2)
batches = [(b.x, b.y) for b, _ in zip(stream, range(3))]
check("make_stream split-digits")
for options in ({"iid": True}, {"blurry": 0.3}):
    next(iter(ocar.make_stream("split-digits", **options)))
    check(f"make_stream {options}")
next(iter(ocar.make_stream("convex")))
check("make_stream convex")

images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
for augment in (ocar.CropFlip(), ResizedCrop(), HorizontalFlip(), ColorJitter(), Grey()):
    augment(images, make_generator(0, "a"))
    check(type(augment).__name__)
ocar.Normalize()(images)
for memory in (ocar.ReservoirMemory(3), ocar.ClassBalancedMemory(3)):
    for x, y in batches:
        memory.add(x, y)
    memory.sample(2)
    memory.load_state_dict(memory.state_dict())
    check(type(memory).__name__)
for curvature in (ocar.KFAC(model(), damping=0.1, ema=0.1, fisher="sampled(1)"),
                  ocar.DenseFisher(ocar.make_model("linear", image_shape=(1, 8, 8), classes=10),
                                   damping=0.1, ema=0.1)):
    with curvature.record():
        logits = curvature.model(batches[0][0].float())
    curvature.update(logits)
    logits.sum().backward()
    curvature.precondition_()
    check(type(curvature).__name__)

with tempfile.TemporaryDirectory() as folder:
    out = Path(folder)
    for name in METHODS:
        quick = {"epochs": 1} if name == "gdumb" else {}
        learner = ocar.make_learner(name, model(), preset="split-digits", **quick)
        check(f"make_learner {name}")
        for x, y in batches:
            learner.learn(x, y)
        learner.remember(*batches[0])
        learner.predict(batches[0][0])
        check(f"{name}: learn, remember, predict")
        learner.save(out / "file")
        ocar.load(out / "file", model()).learn(*batches[1])
        check(f"{name}: save, load")
    ocar.ER(model(), lr=0.1).learn(*batches[0])
    ocar.OCAR(model(), lr=0.1, tau_step=1e-6, ema=0.1).learn(*batches[0])
    check("ER, OCAR")
    common = {"benchmark": "split-digits", "device": "cpu"}
    config = ocar_lab.RunConfig(**common, method="ocar", max_batches=4)
    for _ in zip(ocar.evaluate(learner, stream), range(2)):
        pass
    check("evaluate")
    ocar_lab.run(config, out=out / "runs")
    check("run, with a probe")
    list(run_many([Job(config=config, out=out / "runs"), Job(config=config, out=out / "other")]))
    find_runs(out)
    check("run_many, find_runs")
    # Where it is imported, rich draws a number, and the command line is a process of its own.
    import rich.style
    before = states()
    from ocar_lab.cli import main
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        command = ["run", "split-digits", "er", "--max-batches", "3", "--out", str(out / "cli")]
        for arguments in (["methods"], ["benchmarks"], ["show", str(out / "runs")], command):
            code = main(arguments)
            assert code in (0, None), (arguments, code)
            check(f"ocar {arguments[0]}")
print(len(used))
"""


@pytest.mark.long
def test_nothing_touches_global_random_state() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", UNTOUCHED],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout.split()[-1]) > 100


def test_the_switch_is_on_inside_and_as_before_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    usual = ocar_lab.run(config("ocar"), out=tmp_path / "usual")
    seen = set()
    switched = ocar_lab.run(
        replace(config("ocar"), deterministic=True),
        out=tmp_path / "switched",
        listen=lambda _: seen.add(torch.are_deterministic_algorithms_enabled()),
    )
    assert seen == {True}
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert_same_run(usual.path, switched.path)


def test_it_is_on_as_long_as_anyone_is_inside() -> None:
    one, other = deterministic_algorithms(True), deterministic_algorithms(True)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert torch.are_deterministic_algorithms_enabled()
    other.__exit__(None, None, None)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["er", "ocar"])
def test_twice_the_same_on_a_gpu(method: str, tmp_path: Path) -> None:
    pytest.importorskip("polars")
    values = {"max_batches": 40, "device": "cuda", "deterministic": True}
    runs = [
        ocar_lab.run(replace(config(method), **values), out=tmp_path / name) for name in ("a", "b")
    ]
    assert_same_run(*(run.path for run in runs))
