"""The README's tables are those that ``make readme`` makes, and what they are made of is small."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ocar_lab.cli import main

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 100_000
"""Bytes that a file under results/ may have."""


def test_the_tables_are_those_of_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copy(ROOT / "README.md", tmp_path))
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    methods = next(line for line in lines if line.startswith("README_METHODS")).split()[2:]
    folder = str(ROOT / "results" / "split-cifar100")
    chosen = ["--usual", "--methods", *methods]
    assert main(["show", folder, *chosen, "--markdown", "--into", str(copy)]) == 0
    assert capsys.readouterr().out == f"{copy}: tables unchanged\n", "call `make readme`"
    assert copy.read_bytes() == (ROOT / "README.md").read_bytes()


def test_results_are_small_files() -> None:
    # Figures have a limit of their own, in test_cli_figures.py.
    everything = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    files = [path for path in everything if "figures" not in path.parts]
    assert [path for path in files if path.stat().st_size > LARGEST] == []
