"""A folder of one's own images: the example, and what the guide and the README say of it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from scripts import ROOT, call_script, load_script

from ocar.streams import ArrayStream, DomainIncremental

GUIDE = (ROOT / "docs" / "guides" / "own-images.md").read_text(encoding="utf-8")
SHELL = re.findall(r"(?ms)^```sh\n(.*?)^```", GUIDE)
PRINTED = re.findall(r"(?ms)^```text\n(.*?)^```", GUIDE)
COMMANDS = SHELL[0].splitlines()
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
"""Of the guide's folder."""


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_script("examples/image_folder.py")


def tiny_pictures(folder: Path) -> Path:
    """The classes of the guide's folder, each a shade of its own with noise."""
    random = np.random.default_rng(0)
    for place, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(1, 16):
            pixels = random.integers(0, 40, (20, 24, 3)) + 30 * place
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number:05}.jpg")
    return folder


def without_numbers(text: str) -> list[str]:
    """Lines in which figures are all the same, and answers are any class."""
    text = re.sub(rf": (?:{'|'.join(CLASSES)}) \(\d+%\)", ": CLASS (0%)", text)
    return re.sub(r"\d+\.\d%|\d+ s\b", "0", text).splitlines()


def run_command(line: str, folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        shlex.split(line), cwd=folder, text=True, capture_output=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or "pip" in line  # which may have news of itself
    return done.stdout


def test_the_readme_has_the_guides_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(COMMANDS) == 3
    assert f"```sh\n{SHELL[0]}```" in readme


@pytest.mark.long
def test_what_the_guide_prints_is_what_its_commands_print(tmp_path: Path) -> None:
    # The first two make an environment; this one is there.
    (tmp_path / "clone").mkdir()
    shutil.copytree(ROOT / "examples", tmp_path / "clone" / "examples")
    tiny_pictures(tmp_path / "pictures")
    for line, printed in ((COMMANDS[2], PRINTED[1]), (SHELL[1].strip(), PRINTED[2])):
        here = line.replace(".venv/bin/python", shlex.quote(sys.executable))
        assert here != line
        said = run_command(here, tmp_path / "clone")
        assert without_numbers(said) == without_numbers(printed)


@pytest.mark.sweep  # it installs the package with all that it needs
def test_the_three_commands_in_a_fresh_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "runs", "studies", ".*cache")
    shutil.copytree(ROOT, clone, ignore=ignored)
    tiny_pictures(tmp_path / "pictures")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    said = [run_command(line, clone, kept) for line in COMMANDS]
    assert said[:2] == ["", ""]
    assert without_numbers(said[2]) == without_numbers(PRINTED[1])


def test_a_folder_of_domains(
    example: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = example.draw_folder(tmp_path / "shapes", images=10)
    stream, tasks, classes = example.make_stream(folder, size=16, at_a_time=2, seed=0)
    assert isinstance(stream, DomainIncremental)
    assert (tasks, classes) == (["day", "night"], ["cross", "disc", "square"])
    call_script(example, monkeypatch, str(folder), "--size", "16")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("3 classes in 2 tasks")
    assert [line for line in lines if not line.startswith(" ")][1:] == ["ER", "OCAR"]


def test_a_folder_of_classes(example: ModuleType, tmp_path: Path) -> None:
    folder = example.draw_folder(tmp_path / "shapes", images=10) / "day"
    stream, tasks, classes = example.make_stream(folder, size=16, at_a_time=2, seed=0)
    assert isinstance(stream, ArrayStream)
    assert (tasks, classes) == (["cross, disc", "square"], ["cross", "disc", "square"])
    assert stream.test(0)[0].shape == (4, 3, 16, 16)
    assert stream.test(0)[1].tolist() == [0, 0, 1, 1]
    assert stream.test(1)[1].tolist() == [2, 2]


def test_what_is_saved_answers_as_what_was_trained(
    example: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tiny_pictures(tmp_path / "pictures")
    trained = tmp_path / "trained"
    options = ("--at-a-time", "4", "--methods", "er", "--save", str(trained), "--size", "16")
    call_script(example, monkeypatch, str(folder), *options)
    said = capsys.readouterr().out
    images = [folder / name / "00001.jpg" for name in CLASSES]  # the first of five is for test
    images += [folder / name / f"{number:05}.jpg" for name in CLASSES for number in (6, 11)]
    call_script(example, monkeypatch, "--ask", str(trained / "er"), *map(str, images))
    answers = [line.split(": ")[1].split()[0] for line in capsys.readouterr().out.splitlines()]
    right = [a == path.parent.name for a, path in zip(answers, images, strict=True)]
    assert f"at the end: {sum(right) / len(right):.1%}" in said
    for asked, refused in ((trained, "no saved learner in"), (trained / "er", "Give images after")):
        with pytest.raises(SystemExit, match=refused):
            call_script(example, monkeypatch, "--ask", str(asked))


def test_what_is_no_image_is_named(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_pictures(tmp_path / "pictures")
    (folder / "horse" / "00002.jpg").write_text("not an image")
    with pytest.raises(SystemExit, match=r"Cannot read .*00002\.jpg as an image"):
        call_script(example, monkeypatch, str(folder))


def test_a_folder_of_neither_is_refused(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="must hold images"):
        call_script(example, monkeypatch, str(tmp_path))


def test_without_a_folder_one_is_drawn(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(example.draw_folder, "__kwdefaults__", {"images": 8, "size": 24})
    call_script(example, monkeypatch, "--methods", "er", "--size", "24")
    assert "after night" in capsys.readouterr().out
