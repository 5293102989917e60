"""The examples run, on what they bring and on what a user gives."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ocar.errors import ConfigError
from ocar.streams import ClassIncremental, DomainIncremental

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *arguments])
    module.main()


def test_every_example_is_tested() -> None:
    tested = {"digits", "drifting_regression", "image_folder", "ocar_in_one_file"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


def test_digits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    call(load("digits"), monkeypatch, "--seeds", "0")
    er, ocar = capsys.readouterr().out.splitlines()[-2:]
    assert (er.split()[0], ocar.split()[0]) == ("ER", "OCAR")
    assert float(ocar.split()[2]) > float(er.split()[2]), "accuracy over time"


def test_a_drifting_regression(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(load("drifting_regression"), monkeypatch, "--batches", "150")
    er, ocar = (line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert (er[0], ocar[0]) == ("ER", "OCAR")
    assert float(ocar[1]) < float(er[1]), "before learning"
    assert float(ocar[2]) < float(er[2]), "the first tenth, at the end"


def test_readings_are_those_of_their_seed() -> None:
    module = load("drifting_regression")
    first, again, other = (list(module.readings(4, seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first[3], again[3], strict=True))
    assert not torch.equal(first[3][0], other[3][0])


def test_a_folder_of_domains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("image_folder")
    folder = module.draw_folder(tmp_path / "shapes", images=10)
    stream = module.make_stream(folder, size=16, tasks=None, seed=0)
    assert isinstance(stream, DomainIncremental)
    assert stream.domains == ("day", "night")
    call(module, monkeypatch, str(folder), "--size", "16")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["er", "ocar"]
    assert "Acc" in lines[-1]


def test_a_folder_of_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("image_folder")
    folder = module.draw_folder(tmp_path / "shapes", images=10) / "day"
    stream = module.make_stream(folder, size=16, tasks=3, seed=0)
    assert isinstance(stream, ClassIncremental)
    assert (stream.tasks, stream.classes) == (3, 3)
    assert stream.test(0)[0].shape == (2, 3, 16, 16)
    call(module, monkeypatch, str(folder), "--size", "16", "--tasks", "3", "--methods", "ocar")
    out = capsys.readouterr().out
    assert "3 classes (cross, disc, square), 30 images" in out
    assert out.splitlines()[-1].startswith("ocar")
    with pytest.raises(ConfigError, match="divide the 3 classes"):
        call(module, monkeypatch, str(folder), "--tasks", "2")


def test_a_folder_of_neither_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="must hold images"):
        call(load("image_folder"), monkeypatch, str(tmp_path))


def test_without_a_folder_one_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("image_folder")
    monkeypatch.setattr(module.draw_folder, "__kwdefaults__", {"images": 8, "size": 24})
    call(module, monkeypatch, "--methods", "er", "--size", "24")
    assert "2 domains (day, night)" in capsys.readouterr().out
