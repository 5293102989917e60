"""The gallery's program for time series and its experiment, on a small series."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scripts import ROOT, call_script, load_script


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty days of seven waves with noise, in the form of ETTh1."""
    time = np.arange(30 * 24)[:, None]
    waves = np.sin(2 * np.pi * (time / 24 + np.arange(7) / 7)) * 10.0 ** np.arange(-3, 4)
    noise = np.random.default_rng(0).normal(size=waves.shape) * 0.1 * 10.0 ** np.arange(-3, 4)
    (tmp_path / "ETT").mkdir()
    with (tmp_path / "ETT/ETTh1.csv").open("w") as file:
        file.write("date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\n")
        for hour, row in enumerate(waves + noise):
            file.write(",".join([f"hour {hour}", *(f"{v:.8f}" for v in row)]) + "\n")
    monkeypatch.setenv("OCAR_DATA", str(tmp_path))
    return tmp_path


def test_the_program(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call_script(load_script("examples/gallery_series.py"), monkeypatch, "--limit", "480")
    said = capsys.readouterr().out.split()
    assert said[0] == "MASE"
    assert 0 < float(said[1]) < 20
    lines = (ROOT / "examples/gallery_series.py").read_text().splitlines()
    assert len(lines) <= 60


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = load_script("experiments/gallery/series.py")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "series.json")
    monkeypatch.setattr(module, "MONTH", 24)
    return module


def test_the_floors_and_least_squares(
    data: Path, experiment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wave of a day before is as far off as its noise; a model of the wave is nearer."""
    names = ("persistence", "seasonal persistence", "least squares")
    call_script(experiment, monkeypatch, "--horizon", "3", "--rows", *names)
    rows = json.loads(experiment.RESULTS.read_text())["3"]["rows"]
    found = {name: rows[name]["runs"][0]["mase"] for name in names}
    assert found["seasonal persistence"] == pytest.approx(1.0, abs=0.05)
    assert found["least squares"] < 0.95
    assert found["persistence"] > 2
    assert found["least squares"] == min(rows["least squares"]["tried"].values())


def test_the_picture_is_of_the_stored_rows(
    experiment: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    names = ("OCAR, Student-t", "ER", "least squares", "seasonal persistence")
    rows = {name: {"runs": [{"curve": [1.5, 1.0, 0.9]}]} for name in names}
    experiment.RESULTS.write_text(json.dumps({"24": {"rows": rows}}))
    monkeypatch.setattr(experiment, "PICTURE", tmp_path / "series.png")
    call_script(experiment, monkeypatch, "--draw")
    assert (tmp_path / "series.png").stat().st_size > 1000
