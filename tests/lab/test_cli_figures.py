"""``ocar paper`` of the figures: each is made on a small stream, kept, and drawn from its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ocar_lab
from ocar_lab.cli import main
from ocar_lab.cli.paper import FIGURES, command_line
from ocar_lab.drawing import method_styles
from ocar_lab.paper.figures import setup
from ocar_lab.paper.figures.convex import METHODS

Captured = pytest.CaptureFixture[str]

BEGINNINGS = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}

SHORT = {
    "convex": ["--seeds", "0", "--batches", "2"],
    "landscape": ["--batches", "2", "--tasks", "2", "--samples", "20", "--resolution", "4"],
    "grid": ["--batches", "1", "--lrs", "0.05", "0.1", "--ratios", "0.5", "1"],
    "steps": [],
    "spectrum": ["--batches", "1"],
    "ratio": ["--batches", "2", "--lr", "1e-6", "--ema", "0.14"],
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def no_runs(*args: object, **kwargs: object) -> None:
    raise AssertionError("a run was begun")


def test_every_figure_has_a_short_form() -> None:
    assert set(SHORT) == set(FIGURES)


@pytest.mark.long
@pytest.mark.parametrize("name", SHORT)
def test_a_figure_is_made_and_drawn_again_without_a_run(
    name: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["paper", name, *SHORT[name], "--out", str(tmp_path)]
    assert main(command) == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.suffix for path in paths} == {".json", ".png", ".pdf", ".svg"}
    assert sorted(paths) == sorted(tmp_path.iterdir())
    for path in paths[1:]:
        assert path.read_bytes().startswith(BEGINNINGS[path.suffix[1:]])
    document = json.loads(paths[0].read_text(encoding="utf-8"))
    assert document["command"] == " ".join(["ocar", "paper", name, *SHORT[name]])
    assert str(tmp_path) not in paths[0].read_text(encoding="utf-8")
    # Again: no run is begun, and the file stays; that the picture does too is seen on one.
    before = {path: path.read_bytes() for path in paths if path.suffix in (".json", ".svg")}
    monkeypatch.setattr(setup, "make_config_learner", no_runs)
    if name != "steps":
        monkeypatch.setattr("ocar_lab.paper.figures.base.save", lambda figure, stem: [stem])
    assert main(command) == 0
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.long
def test_curves_are_of_stored_runs_and_missing_ones_are_made(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "figures"
    config = ocar_lab.RunConfig(benchmark="split-digits", method="er", threads=1, probe=False)
    ocar_lab.run(config, out=runs)
    common = ["paper", "curves", "--results", str(runs), "--out", str(out)]
    assert main([*common, "--methods", "er", "er-iid", "--workers", "1"]) == 0
    capsys.readouterr()
    file = out / "curves-split-digits.json"
    parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
    kept = parts["er"]["settings"]
    assert (kept["hash"], kept["seeds"], len(kept["devices"])) == (config.hash(), [0], 1)
    assert (runs / "split-digits" / "er-iid").is_dir()
    assert parts["er-iid"]["numbers"]["times"][-1] == 5
    # Without the runs, and for fewer methods, what was kept is drawn.
    (tmp_path / "none").mkdir()
    monkeypatch.setattr("ocar_lab.cli.running.do_runs", no_runs)
    common[3] = str(tmp_path / "none")
    assert main([*common, "--methods", "er-iid", "--seeds", "0"]) == 0
    assert json.loads(file.read_text(encoding="utf-8"))["parts"] == parts


def test_wrong_names_are_refused(tmp_path: Path, capsys: Captured) -> None:
    assert main(["paper", "curves", "--methods", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
    assert main(["paper", "curves", "--benchmark", "convex"]) == 2
    assert "ocar paper convex draws them" in capsys.readouterr().err
    preset = tmp_path / "preset.json"
    values = {"format": "ocar-preset", "version": 1, "benchmark": "split-digits", "method": "er"}
    preset.write_text(json.dumps({**values, "settings": {"lr": 0.1}}))
    assert main(["paper", "convex", "--preset", str(preset)]) == 2
    assert "it is for er on split-digits. Must be" in capsys.readouterr().err


def test_presets_decide_the_settings(tmp_path: Path) -> None:
    preset = tmp_path / "preset.json"
    values = {"format": "ocar-preset", "version": 1, "benchmark": "convex", "method": "er"}
    preset.write_text(json.dumps({**values, "settings": {"lr": 0.017}}))
    out = ["--out", str(tmp_path / "out"), "--methods", "er", "ngd", "--seeds", "0"]
    assert main(["paper", "convex", *out, "--batches", "1", "--preset", str(preset)]) == 0
    parts = json.loads((tmp_path / "out" / "convex.json").read_text(encoding="utf-8"))["parts"]
    assert parts["er, seed 0"]["settings"]["selected"]["lr"] == 0.017
    assert parts["ngd, seed 0"]["settings"]["selected"]["curvature"] == "dense"


def test_a_kept_command_names_no_folder() -> None:
    words = ["--seeds", "0", "--out", "/a", "--data-root=/b", "--results", "/c", "--lr", "1"]
    assert command_line("ratio", words) == "ocar paper ratio --seeds 0 --lr 1"


def test_methods_are_told_apart_without_colour() -> None:
    lines = [str(line) for _, line, _ in method_styles(METHODS).values()]
    assert len(set(lines)) == len(METHODS)
    others = method_styles(["ocar", "mir", "rar", "lpr"])
    assert len({str(look[1]) for look in others.values()}) == 4


FOLDER = Path(__file__).parents[2] / "results" / "figures"


def kept_figures() -> list[Path]:
    return sorted(FOLDER.rglob("*.json"))


def test_kept_figures_are_small_and_say_what_made_them() -> None:
    files = kept_figures()
    assert {file.stem.partition("-")[0] for file in files} == {*FIGURES, "curves"}
    about = (FOLDER / "README.md").read_text(encoding="utf-8")
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        assert document["command"] in about, file.name
        assert file.with_suffix(".png").exists()
    for file in FOLDER.rglob("*.*"):
        assert file.stat().st_size < (300_000 if file.suffix == ".png" else 500_000), file.name
        assert file.suffix != ".png" or f"({file.relative_to(FOLDER)})" in about
