"""The file of a figure: parts that are there are not made again, others are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from ocar.errors import RunError
from ocar_lab.paper.figures.store import Wanted, gather, read_document
from ocar_lab.runs.provenance import source_revision


@dataclass(frozen=True, kw_only=True)
class Inner:
    values: dict[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Part:
    number: float | None
    inner: tuple[Inner, ...]


def test_a_file_goes_on_and_starts_again_where_settings_changed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.json"
    made: list[str] = []

    def make(name: str) -> Part:
        if name == "b" and made == ["a"]:
            raise KeyboardInterrupt
        made.append(name)
        return Part(number=None, inner=(Inner(values={name: (1.0, 2.0)}),))

    wanted = Wanted(settings={"n": 1}, parts={"a": {"lr": 0.1}, "b": {}})
    with pytest.raises(KeyboardInterrupt):
        gather(path, wanted, Part, make)
    assert list(read_document(path)["parts"]) == ["a"]
    assert read_document(path)["written by"]["git"] == source_revision()
    made.append("again")
    parts = gather(path, wanted, Part, make)
    assert made == ["a", "again", "b"]
    assert parts["b"] == Part(number=None, inner=(Inner(values={"b": (1.0, 2.0)}),))
    other = Wanted(settings={"n": 1}, parts={"a": {"lr": 0.2}, "b": {}})
    gather(path, other, Part, make)
    assert made[3:] == ["a"]
    gather(path, Wanted(settings={"n": 2}, parts=other.parts), Part, make)
    assert made[4:] == ["a", "b"]
    path.write_text(json.dumps({"format": "another"}))
    with pytest.raises(RunError, match="does not hold the numbers of a figure"):
        gather(path, wanted, Part, make)
