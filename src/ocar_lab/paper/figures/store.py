"""The numbers of a figure in one small file, part by part, so that drawing needs no run.

A figure asks for parts by name, such as a run for each method. Each is written as soon as it is
made, so what was interrupted goes on; parts that were made from other settings are made again.

::

    {
        "format": "ocar-figure",
        "version": 1,
        "command": "ocar paper landscape --benchmark split-digits",
        "written by": {"versions": {...}, "device": {...}},
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
from ocar_lab.runs.provenance import describe_device, versions

P = TypeVar("P")

FORMAT, VERSION = "ocar-figure", 1
DIGITS = 7
"""Significant digits that are written: more than a picture or a comparison shows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a figure is made from."""

    settings: Mapping[str, Any]
    """What all parts depend on, in plain values."""

    parts: Mapping[str, Mapping[str, Any]]
    """What each part depends on beside that."""

    command: str
    """What makes the file again."""


def gather(
    path: Path,
    wanted: Wanted,
    kind: type[P],
    make: Callable[[str], P],
    *,
    begin: Callable[[str], object] = lambda name: None,
) -> dict[str, P]:
    """The parts of a figure: those that its file has, and the others made now.

    Args:
        path: The file; it is written after each part that is made.
        wanted: Which parts, and from what.
        kind: The dataclass of a part.
        make: Makes a part by its name.
        begin: Told of each part before it is made.

    Returns:
        The parts as the file has them, in the order asked for.

    Raises:
        RunError: The file is there and is none of a figure.
    """
    settings = _written(wanted.settings)
    there = read_document(path) if path.exists() else {}
    same = there.get("settings") == settings
    parts: dict[str, Any] = dict(there["parts"]) if same else {}
    for name, own in wanted.parts.items():
        if parts.get(name, {}).get("settings") == _written(own):
            continue
        begin(name)
        parts[name] = {"settings": _written(own), "numbers": _written(_plain(make(name)))}
        document = {
            "format": FORMAT,
            "version": VERSION,
            "command": wanted.command,
            "written by": {"versions": versions(), "device": describe_device(torch.device("cpu"))},
            "settings": settings,
            "parts": parts,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        write_whole(path, text.encode() + b"\n")
    return {name: _parsed(kind, parts[name]["numbers"]) for name in wanted.parts}


def read_document(path: Path) -> dict[str, Any]:
    """All that the file of a figure says.

    Raises:
        RunError: The file cannot be read, or is none of a figure.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    said = document if isinstance(document, dict) else {}
    if said.get("format") != FORMAT or said.get("version") != VERSION:
        raise RunError(f"{path} does not hold the numbers of a figure; move it elsewhere.")
    return said


def read_parts(path: Path, kind: type[P]) -> dict[str, P]:
    """The parts that the file of a figure has.

    Args:
        path: The file.
        kind: The dataclass of a part.

    Raises:
        RunError: The file cannot be read, or is none of a figure.
    """
    parts = read_document(path)["parts"]
    return {name: _parsed(kind, value["numbers"]) for name, value in parts.items()}


def _plain(value: Any) -> Any:
    """A dataclass, at any depth, as a dictionary."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def _written(value: Any) -> Any:
    """The same with numbers of a few digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {str(name): _written(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_written(item) for item in value]
    return value


def _parsed(kind: Any, value: Any) -> Any:
    """What a plain value stands for, by the type it should have."""
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
