"""Each group of measurements runs, small; what it compares is what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from benchmarks import Breakdown, Ratio, Result, Setup, Skipped, check_names, choose_device, measure
from benchmarks.inside import REST
from benchmarks.mlp import BareReplay, digits, mlp_learner
from torch import Tensor

from ocar.errors import ConfigError
from ocar.learner import Learner
from ocar.methods.er import ERSettings
from ocar.models import MLP

pytestmark = pytest.mark.long

SETUP = Setup.quick(torch.device("cpu"))


def found(group: str, setup: Setup = SETUP) -> dict[str, Result]:
    return {result.name: result for result in measure(setup, [group])}


def check_ratio(result: Result) -> None:
    assert isinstance(result, Ratio)
    assert 0 < result.smallest <= result.ratio <= result.largest < float("inf")
    assert result.turns == 2
    assert result.target is None  # what is wanted is wanted of the real network


def test_steps() -> None:
    results = found("steps")
    assert list(results) == [
        "step, 5 classes",
        "step, 50 classes",
        "step, 100 classes",
        "more classes",
    ]
    for result in results.values():
        check_ratio(result)
    last = results["more classes"]
    assert isinstance(last, Ratio)
    assert (last.above, last.below) == ("OCAR at 100 classes", "OCAR at 5 classes")


def test_slow_weights() -> None:
    results = found("slow")
    assert list(results) == ["slow weights", "a prediction after each batch"]
    for result in results.values():
        check_ratio(result)


def test_saving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCAR_DATA", str(tmp_path))
    first, *others = found("saving").values()
    assert isinstance(first, Breakdown)
    assert {part.name for part in first.parts} == {"saving", "learning and evaluating"}
    assert all(part.amount > 0 for part in first.parts)
    assert first.note == "8 batches, saved 1 times, evaluated after every 1"
    assert all(isinstance(other, Skipped) for other in others)  # their data is not there


def test_nngeometry() -> None:
    check_ratio(found("nngeometry")["nngeometry"])


@pytest.mark.parametrize(
    ("group", "package", "name"),
    [
        ("nngeometry", "nngeometry", "nngeometry"),
        ("mlp", "avalanche", "mlp, Avalanche"),
        ("wide", "timm", "wide"),
    ],
)
def test_a_package_that_is_not_there_is_said_in_a_line(
    group: str, package: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [_Refuse(package), *sys.meta_path])
    skipped = found(group)[name]
    assert isinstance(skipped, Skipped)
    assert "pip install" in skipped.reason
    assert "not installed" in skipped.reason


class _Refuse:
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("group", ["recorded", "concurrent"])
def test_what_needs_a_gpu_is_skipped_without_one(group: str) -> None:
    (result,) = found(group).values()
    assert isinstance(result, Skipped)
    assert result.reason.startswith("needs a GPU")


def test_mlp() -> None:
    results = found("mlp")
    assert list(results) == ["mlp, the floor", "mlp, OCAR", "mlp, Avalanche"]
    check_ratio(results["mlp, the floor"])
    check_ratio(results["mlp, OCAR"])


def test_large() -> None:
    results = found("large")
    assert list(results) == ["large images", "large images, evaluation"]
    for result in results.values():
        check_ratio(result)


def test_serving() -> None:
    results = found("serving")
    assert [name.partition(", ")[2] for name in results] == [
        "publishing",
        "one reader",
        "a reader that waits",
    ]
    for result in results.values():
        check_ratio(result)


def test_parts() -> None:
    for result in found("parts").values():
        assert isinstance(result, Breakdown)
        assert sum(part.share for part in result.parts) == pytest.approx(1)
        names = {part.name for part in result.parts}
        assert len(names) == 9
        assert REST in names
        assert all(part.amount > 0 for part in result.parts)


def test_floor() -> None:
    *counted, floor = found("floor").values()
    assert all(isinstance(result, Breakdown) for result in counted)
    check_ratio(floor)


def test_the_bare_loop_does_the_arithmetic_of_er() -> None:
    torch.manual_seed(0)
    models = [MLP(784, classes=16).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    settings = ERSettings(lr=0.1, memory=20, memory_kind="reservoir", classes=tuple(range(16)))
    learner = Learner(models[0], settings)
    learner.remember(*digits(20))
    bare = _Double(models[1], *digits(20), lr=0.1, replay_batch=10, passes=3)
    bare._generator.set_state(learner.memory.state_dict()["generator"])
    x, y = digits(200)
    for batch in zip(x.split(10), y.split(10), strict=True):
        report, loss = learner.learn(*batch), bare.learn(*batch)
    torch.testing.assert_close(report.loss, loss, rtol=1e-6, atol=1e-8)
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    kept = learner.memory.gather(torch.arange(20))
    assert kept.x.equal(bare.x)
    assert kept.y.equal(bare.y)


class _Double(BareReplay):
    """The bare loop in double precision."""

    def __init__(self, model: MLP, x: Tensor, y: Tensor, **settings: object) -> None:
        super().__init__(model, x, y, **settings)  # type: ignore[arg-type]
        model.register_forward_pre_hook(lambda module, inputs: inputs[0].double())


def test_learners_have_a_full_memory() -> None:
    learner = mlp_learner("er")
    assert len(learner.memory) == learner.memory.capacity == 100


def test_names_and_devices_are_checked() -> None:
    assert check_names(["mlp", "steps"]) == ("steps", "mlp")
    with pytest.raises(ConfigError, match=r"Unknown measurement 'x'\. There are steps, nngeometry"):
        check_names(["mlp", "x"])
    with pytest.raises(ConfigError, match="Must be one of 'auto', 'cpu', 'cuda'"):
        choose_device("tpu")
    with pytest.raises(ConfigError, match=r"Invalid turns=0\. Must be at least 1"):
        Setup(device=torch.device("cpu"), turns=0)
