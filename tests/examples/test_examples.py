"""The examples run, on what they bring and on what a user gives."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from scripts import ROOT, call_script, load_script

EXAMPLES = ROOT / "examples"


def load(name: str) -> ModuleType:
    return load_script(f"examples/{name}.py")


def test_every_example_is_tested() -> None:
    tested = {"digits", "drifting_regression", "image_folder", "ocar_in_one_file"}
    tested |= {"serve_load", "serve_consumer"}  # in tests/service
    tested |= {path.stem for path in EXAMPLES.glob("gallery_*.py")}  # in test_gallery_*.py
    for name in (name for name in tested if name.startswith("gallery_")):
        assert (Path(__file__).parent / f"test_{name}.py").exists()
    tested |= {"lora_text"}  # in test_gallery_text.py
    tested |= {"ranks", "ranks_ray"}  # in tests/ranks
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


def test_digits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    call_script(load("digits"), monkeypatch, "--seeds", "0")
    er, ocar = capsys.readouterr().out.splitlines()[-2:]
    assert (er.split()[0], ocar.split()[0]) == ("ER", "OCAR")
    assert float(ocar.split()[2]) > float(er.split()[2]), "accuracy over time"


def test_a_drifting_regression(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call_script(load("drifting_regression"), monkeypatch, "--batches", "150")
    er, ocar = (line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert (er[0], ocar[0]) == ("ER", "OCAR")
    assert float(ocar[1]) < float(er[1]), "before learning"
    assert float(ocar[2]) < float(er[2]), "the first tenth, at the end"


def test_readings_are_those_of_their_seed() -> None:
    module = load("drifting_regression")
    first, again, other = (list(module.readings(4, seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first[3], again[3], strict=True))
    assert not torch.equal(first[3][0], other[3][0])
