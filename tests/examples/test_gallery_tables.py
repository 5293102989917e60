"""The gallery's program for tables, on a file whose labels change their meaning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scripts import ROOT, call_script, load_script


def write_table(path: Path, rows: int, seed: int = 0) -> None:
    """Two numbers; the label says whether the first is larger, and after two thirds the second."""
    x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed))
    first = x[:, 0] > x[:, 1]
    first[2 * rows // 3 :] ^= True
    lines = [
        f"{a},{b},{'up' if up else 'down'}"
        for (a, b), up in zip(x.tolist(), first.tolist(), strict=True)
    ]
    path.write_text("\n".join(["a,b,label", *lines]) + "\n", encoding="utf-8")


def test_the_window_follows_what_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / "table.csv", 1500)
    program = load_script("examples/gallery_tables.py")
    call_script(program, monkeypatch, str(tmp_path / "table.csv"), "--memory", "300")
    said = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert list(said) == ["ReservoirMemory", "WindowMemory"]
    assert float(said["WindowMemory"]) > float(said["ReservoirMemory"]) + 0.01


def test_the_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv", 30)
    x, y = load_script("examples/gallery_tables.py").read(tmp_path / "table.csv", 12)
    assert x.shape == (12, 2)
    assert torch.equal(y, (x[:, 0] > x[:, 1]).long()), "labels are in alphabetical order"


def test_the_program_is_short() -> None:
    text = (ROOT / "examples/gallery_tables.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
