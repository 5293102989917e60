"""Checkpoints: tensors and plain values in one file, written all or nothing.

A checkpoint is a safetensors file. The plain values are JSON in its header, so
that one rename makes the whole of it appear at once, and reading it can never
run code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from ocar.errors import CheckpointError

FORMAT = "ocar-checkpoint"
VERSION = 1

PARTIAL = ".partial"
"""How the name of a file ends that is being written; a killed process may leave one behind."""


def save_state(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> None:
    """Write a checkpoint; a file of that name is replaced only once the new one is whole.

    Args:
        path: The file to write. Its folder is made when it does not exist.
        tensors: Tensors by name.
        values: What JSON can hold.
    """
    target = Path(path)
    header = {"format": FORMAT, "version": str(VERSION), "values": json.dumps(dict(values))}
    # safetensors refuses tensors that share memory or are not contiguous.
    own = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, serialize(own, metadata=header))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that its name stands for the old content or the new, never for a part.

    Args:
        path: The file, in a folder that exists.
        data: The content.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with naming(path), partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say which file it was when writing fails, which the system does not once it is open."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def load_state(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint that :func:`save_state` wrote.

    Raises:
        CheckpointError: The file is missing, cut short, of another kind or too new.
    """
    target = Path(path)
    if not target.is_file():
        raise CheckpointError(f"There is no checkpoint {str(target)!r}.")
    try:
        with safe_open(target, framework="pt") as file:
            header = file.metadata() or {}
            names = list(file.keys())
            _check_shapes({name: file.get_slice(name).get_shape() for name in names}, target)
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in names}
    except Exception as error:  # safetensors knows types of numbers, for one, that torch does not
        raise CheckpointError(f"{str(target)!r} is not a whole checkpoint: {error}") from error
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{str(target)!r} is a safetensors file, but not one of ocar's.")
    version = header.get("version", "")
    if version != str(VERSION):
        raise CheckpointError(
            f"{str(target)!r} has checkpoint version {version!r}; this ocar reads {VERSION}."
        )
    try:
        values = json.loads(header["values"])
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{str(target)!r} has a damaged header: {error}") from error
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise CheckpointError(f"{str(target)!r} has a damaged header: its values are a {kind}.")
    return tensors, values


def _check_shapes(shapes: Mapping[str, list[int]], path: Path) -> None:
    """Refuse what no file of that size can fill: 10¹² × 0 numbers need no bytes at all."""
    size = path.stat().st_size
    for name, shape in shapes.items():
        if max(shape, default=0) > size:
            raise CheckpointError(f"{name!r} has shape {tuple(shape)} in a file of {size} bytes.")


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors with ``prefix.`` before each name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those tensors whose name starts with ``prefix.``, under the rest of their name."""
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def check_names(what: str, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors whose names or shapes are not the expected ones.

    Raises:
        CheckpointError: A name is missing or unknown, or a shape differs.
    """
    missing, unknown = sorted(expected.keys() - given), sorted(given.keys() - expected.keys())
    if missing or unknown:
        raise CheckpointError(
            f"The checkpoint is of another {what}: missing {missing or 'none'}, "
            f"unknown {unknown or 'none'}."
        )
    for name, tensor in expected.items():
        if given[name].shape != tensor.shape:
            raise CheckpointError(
                f"The checkpoint is of another {what}: {name!r} has shape "
                f"{tuple(given[name].shape)}, here {tuple(tensor.shape)}."
            )


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether every floating-point tensor is free of NaN and Inf."""
    return all(bool(torch.isfinite(t).all()) for t in tensors.values() if t.is_floating_point())
