"""``ocar tune --stream``: a module's function or a folder of images, ending in a line of code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ocar
from ocar.datasets import load_classes
from ocar_lab.cli import main
from ocar_lab.tune.own_stream import open_stream

pytest.importorskip("tyro", reason="the command line is not installed")

MODULE = """
import torch
from torch import nn

def recorded():
    generator = torch.Generator().manual_seed(0)
    for place in range(24):
        y = torch.randint(0, 2, (10,), generator=generator) + 2 * (place // 8)
        yield torch.randn(10, 6, generator=generator) + 3 * torch.eye(6)[y], y

def with_model():
    return nn.Linear(6, 8), list(recorded())

def targets():
    return [(x, x[:, :2]) for x, _ in recorded()]

def cubes():
    return [(x.view(10, 1, 1, 2, 3), y) for x, y in recorded()]

def texts():
    return [(x, ["cat"] * 10) for x, _ in recorded()]

def nothing():
    return []

def number():
    return 3

def broken():
    raise OSError("no such recording")

def cut():
    yield torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    raise OSError('no more of it')

def hungry(folder):
    return folder

constant = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_recording.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_recording", None)


def tune(stream: str, *more: str) -> int:
    return main(["tune", "--stream", stream, "--trials", "2", *more])


@pytest.mark.parametrize(
    ("function", "flags", "model"),
    [
        ("recorded", [], "model = ocar.make_model('mlp', image_shape=(1, 1, 6))"),
        (
            "recorded",
            ["--model", "linear", "--seed", "2"],
            "model = ocar.make_model('linear', image_shape=(1, 1, 6), seed=2)",
        ),
        ("targets", [], "model = ocar.make_model('mlp', image_shape=(1, 1, 6), classes=2)"),
        ("with_model", ["--tau-step", "1e-8"], ""),
        ("with_model", ["--method=er"], ""),
    ],
)
def test_a_search_ends_with_code_that_runs(
    function: str, flags: list[str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(f"my_recording:{function}", "--memory", "30", *flags) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    names = {"ocar": ocar, "model": torch.nn.Linear(6, 8)}
    if model:
        assert lines[0] == model
        exec(lines[0], names)
    made = eval(lines[-1], names)
    assert made.settings.memory == 30
    assert lines[-1].startswith("ocar.ER(" if "--method=er" in flags else "ocar.OCAR(")
    assert ("tau_step=1e-08" in lines[-1]) == ("--tau-step" in flags)
    _, batches = open_stream(f"my_recording:{function}", size=1, at_a_time=1, seed=0)
    made.learn(*next(iter(batches)))


def pictures(folder: Path, *, domains: bool) -> None:
    """Ten images of each of three classes, or of two in two domains, of one grey level each."""
    places = [f"{d}/{c}" for d in ("day", "night") for c in "ab"] if domains else list("abc")
    for place, name in enumerate(places):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.full((9, 12, 3), 50 * place + number, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def test_a_folder_of_classes_comes_two_at_a_time(tmp_path: Path) -> None:
    pictures(tmp_path / "pictures", domains=False)
    arrays = load_classes(tmp_path / "pictures", size=8)
    assert (arrays.classes, arrays.domains, len(arrays.y_test)) == (("a", "b", "c"), (), 6)
    assert torch.equal(arrays.x_train[:, 0, 0, 0] // 50, arrays.y_train)
    model, batches = open_stream(str(tmp_path / "pictures"), size=8, at_a_time=2, seed=0)
    labels = torch.cat([y for _, y in batches])
    assert model is None
    assert set(labels[:16].tolist()) == {0, 1}
    assert labels[16:].tolist() == [2] * 8
    assert all(torch.equal(x[:, 0, 0, 0] // 50, y) for x, y in batches)


@pytest.mark.parametrize("domains", [False, True])
def test_a_search_on_a_folder(
    domains: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures(tmp_path / "pictures", domains=domains)
    assert tune("pictures", "--size", "8", "--method", "er", "--device", "cpu") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "model = ocar.make_model('mlp', image_shape=(3, 8, 8))"
    assert out[-1].startswith("ocar.ER(model")


WRONG = [
    (["my_recording:unknown"], "my_recording has no function 'unknown'"),
    (["my_recording:constant"], "a int, not a function"),
    (["my_recording:broken"], "the call broken() raised OSError: no such recording"),
    (["my_recording:cut"], "my_recording:cut: after 1 batches it raised OSError: no more of it."),
    (["my_recording:hungry"], "It is called without arguments"),
    (["my_recording:number"], "it returned a int. Must be batches (x, y)"),
    (["my_recording:nothing"], "it has no batches"),
    (["my_recording:cubes"], "the function must return (model, batches)"),
    (["nowhere.at.all:function"], "ModuleNotFoundError: No module named 'nowhere'"),
    (["my_recording"], "Must be MODULE:FUNCTION, as in import MODULE, or a folder of images"),
    (["."], "it must hold images in class/ or in domain/class/ folders"),
    (["my_recording:with_model", "--model", "mlp"], "the stream brings its own model"),
    (["my_recording:recorded", "--model", "nonsense"], "Unknown model 'nonsense'"),
    (["my_recording:recorded", "--method", "nonsense"], "Unknown method 'nonsense'"),
    (["my_recording:recorded", "--method"], "Unknown method ''"),
    (["my_recording:recorded", "--method", "er", "--ema", "1"], "--ema. It is a setting of"),
    (["my_recording:recorded", "--minutes", "0"], "Invalid minutes=0.0. Must be larger than 0"),
    (["my_recording:recorded", "--method", "er", "--lr", "1"], "Nothing to search"),
]


@pytest.mark.parametrize(("words", "reason"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_a_wrong_call_is_told_in_a_line(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--stream", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert reason in captured.err
    assert len(captured.err.splitlines()) <= 2


def test_labels_of_a_wrong_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("my_recording:texts") == 1
    assert "Batch 0, its y: too many dimensions" in capsys.readouterr().err


def test_a_benchmark_or_a_stream(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "split-digits", "er", "--stream", "my_recording:recorded"]) == 2
    assert "Give a benchmark and a method, or --stream" in capsys.readouterr().err
    assert main(["tune", "--stream=my_recording:recorded", "--help"]) == 0
    assert "Searched: lr, tau_step, ema" in " ".join(capsys.readouterr().out.split())
