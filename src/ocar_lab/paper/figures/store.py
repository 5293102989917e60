"""The numbers of a figure in one small file, part by part, so that drawing needs no run.

A figure has named parts, such as one run for each method. Each part is written as soon as it is
made, so an interrupted figure goes on. A part is made again if its settings have changed.

::

    {
        "format": "ocar-figure",
        "version": 1,
        "command": "ocar paper landscape --benchmark split-digits",
        "written by": {"versions": {...}, "device": {...}, "git": {...}},
        "settings": {...},
        "parts": {"er": {"settings": {...}, "numbers": {...}}, "ocar": {...}},
    }
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from ocar.errors import RunError
from ocar.files import write_whole
from ocar_lab.runs.folder import read_json
from ocar_lab.runs.provenance import describe_device, source_revision, versions

P = TypeVar("P")

FORMAT, VERSION = "ocar-figure", 1
DIGITS = 7
"""Significant digits that are written: more than a picture or a comparison shows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a figure is made from, in plain values."""

    settings: Mapping[str, Any]  # of all parts
    parts: Mapping[str, Mapping[str, Any]]  # of each part


def gather(
    path: Path, wanted: Wanted, kind: type[P], make: Callable[[str], P], *, command: str = ""
) -> dict[str, P]:
    """The parts of a figure: from its file where they are there, else made now by their names.

    Args:
        path: The file; it is written after each part that is made.
        wanted: The parts, and their order.
        kind: The dataclass of a part.
        make: Makes a part.
        command: The command line, for the file.

    Raises:
        RunError: The file exists and is not of a figure.
    """
    settings = _rounded(wanted.settings)
    there = read_document(path) if path.exists() else {}
    parts: dict[str, Any] = dict(there["parts"]) if there.get("settings") == settings else {}
    for name, own in wanted.parts.items():
        if parts.get(name, {}).get("settings") == _rounded(own):
            continue
        parts[name] = {"settings": _rounded(own), "numbers": _rounded(make(name))}
        document = {
            "format": FORMAT,
            "version": VERSION,
            "command": command,
            "written by": {
                "versions": versions(),
                "device": describe_device(torch.device("cpu")),
                "git": source_revision(),
            },
            "settings": settings,
            "parts": parts,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        write_whole(path, text.encode() + b"\n")
    return {name: _parsed(kind, parts[name]["numbers"]) for name in wanted.parts}


def read_document(path: Path) -> dict[str, Any]:
    """The content of a figure's file.

    Raises:
        RunError: The file cannot be read, or is not of a figure.
    """
    document = read_json(path)
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise RunError(f"{path} does not hold the numbers of a figure; move it elsewhere.")
    return document


def _rounded(value: Any) -> Any:
    """Dataclasses as dictionaries, numbers to a few digits, at any depth."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if dataclasses.is_dataclass(value):
        return _rounded(vars(value))
    if isinstance(value, Mapping):
        return {str(name): _rounded(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(item) for item in value]
    return value


def _parsed(kind: Any, value: Any) -> Any:
    """A plain value as an object of a type; no library of ours reads dataclasses from JSON."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = dataclasses.fields(kind)
        return kind(**{f.name: _parsed(hints[f.name], value[f.name]) for f in fields})  # type: ignore[operator]
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_parsed(k, item) for k, item in zip(kinds, value, strict=True))
    if origin in (types.UnionType, typing.Union):
        rest = [k for k in inner if k is not type(None)]
        return None if value is None else _parsed(rest[0], value)
    if origin in (dict, Mapping):
        return {name: _parsed(inner[1], item) for name, item in value.items()}
    return float(value) if kind is float else value
