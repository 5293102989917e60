"""Checkpoints: tensors and plain values in one file, written all or nothing.

A checkpoint is a safetensors file. The plain values are JSON in its header, so one rename replaces
all of it, and reading it never runs code. The header also holds a SHA-256 of all bytes of the file,
computed with zeros in its own place, so a file altered anywhere is refused. The checkpoint before
it stays as ``NAME.previous``, and is used if the newest is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load as deserialize
from safetensors.torch import save as serialize
from torch import Tensor

from ocar.errors import CheckpointError, CheckpointWarning, NumericalError
from ocar.files import clear_partials, make_folder, new_file, read_file
from ocar.version import __version__

FORMAT = "ocar-checkpoint"
VERSION = 3
OLDER = ("1", "2")
"""Versions that ocar 0.1 wrote; its learners had other parts, so they are not read."""

PREVIOUS = ".previous"
"""Suffix of the checkpoint before the newest."""

T = TypeVar("T")

_ZEROS = b"0" * 64
_CHECKSUM = re.compile(rb'"checksum":"([0-9a-f]{64})"')  # a quote inside a string has a backslash
SAVED_TYPES = frozenset(
    {
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    }
)  # others, such as float8, cannot be checked for NaN


def save_state(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> None:
    """Write a checkpoint: tensors by name, and values that JSON can hold.

    The checkpoint before it is kept as ``NAME.previous``. A missing folder is made.

    Raises:
        NumericalError: A tensor holds NaN or Inf; nothing was written.
        CheckpointError: A tensor has an unsupported type; nothing was written.
    """
    target = Path(path)
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "values": json.dumps(dict(values)),
        "checksum": _ZEROS.decode(),
    }
    # safetensors refuses tensors that share memory or are not contiguous.
    own = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    _check_types(own, target)
    if broken := not_finite(own):
        raise NumericalError(
            f"{str(target)!r} was not written: {', '.join(broken)} would hold NaN or Inf."
        )
    make_folder(target.parent)
    with new_file(target, previous=previous(target)) as file:
        file.write(seal(serialize(own, metadata=header)))


def seal(data: bytes) -> bytes:
    """The bytes of a checkpoint with their checksum filled in; unchanged if it has no place."""
    found = _checksum(data)
    if found is None:
        return data
    start, end = found.span(1)
    digest = hashlib.sha256(data[:start] + _ZEROS)
    digest.update(memoryview(data)[end:])
    return b"".join([data[:start], digest.hexdigest().encode(), memoryview(data)[end:]])


def _checksum(data: bytes) -> re.Match[bytes] | None:
    """The checksum in the header of a checkpoint."""
    return _CHECKSUM.search(data, 8, 8 + int.from_bytes(data[:8], "little"))


def previous(path: str | os.PathLike[str]) -> Path:
    """The path of the checkpoint before the one at ``path``."""
    target = Path(path)
    return target.with_name(target.name + PREVIOUS)


def load_newest(path: str | os.PathLike[str], read: Callable[[Path], T]) -> T:
    """Read a checkpoint or, if it is refused, the one before it, with a warning.

    Raises:
        CheckpointError: Both were refused; the message gives the reason of the newer one.
    """
    target, older = Path(path), previous(path)
    clear_partials(target.parent, target.name)
    try:
        return read(target)
    except CheckpointError as error:
        if not older.is_file():
            raise
        try:
            found = read(older)
        except CheckpointError as another:
            if str(another).replace(str(older), str(target)) == str(error):
                raise error from None  # not damaged: both are of another model, for example
            reason = f"The checkpoint before it cannot be read either: {another}"
            raise CheckpointError(f"{error} {reason}") from error
        warnings.warn(
            f"{error} The checkpoint before it, {str(older)!r}, was used: what was learned "
            "between the two is lost.",
            CheckpointWarning,
            stacklevel=3,
        )
        return found


def load_state(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint that :func:`save_state` wrote.

    Raises:
        CheckpointError: The file is missing, cut short, altered, of another kind or too new, or
            holds NaN or Inf.
    """
    target = Path(path)
    if not target.is_file():
        raise CheckpointError(f"There is no checkpoint {str(target)!r}.")
    try:
        data = read_file(target)  # once: another process may put a new file in its place
        described = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        header: dict[str, str] = described.pop("__metadata__", {})
        _check_header(header, data, target)
        _check_shapes({name: entry["shape"] for name, entry in described.items()}, data, target)
        tensors: dict[str, Tensor] = deserialize(data)
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint {str(target)!r}.") from None
    except CheckpointError:
        raise
    except Exception as error:  # for example a type that safetensors knows and torch does not
        raise CheckpointError(f"{str(target)!r} is not a whole checkpoint: {error}") from error
    try:
        values = json.loads(header["values"])
        if not isinstance(values, dict):
            raise ValueError(f"its values are a {type(values).__name__}.")
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{str(target)!r} has a damaged header: {error}") from error
    _check_types(tensors, target)
    if broken := not_finite(tensors):
        raise CheckpointError(f"{str(target)!r} holds NaN or Inf in {', '.join(broken)}.")
    return tensors, values


def _check_header(header: Mapping[str, str], data: bytes, path: Path) -> None:
    """Raise if a file is of another kind, of another version, or not the saved one in any byte."""
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{str(path)!r} is a safetensors file, but not one of ocar's.")
    version = header.get("version", "")
    if version in OLDER:
        raise CheckpointError(
            f"{str(path)!r} was saved by ocar 0.1, whose checkpoints ocar {__version__} does not "
            "read. Use ocar 0.1 for it, or start again under another name."
        )
    if version != str(VERSION):
        raise CheckpointError(
            f"{str(path)!r} has checkpoint version {version!r}; this ocar reads {VERSION}."
        )
    if _checksum(data) is None:
        raise CheckpointError(f"{str(path)!r} is not a whole checkpoint: it has no checksum.")
    if seal(data) != data:
        raise CheckpointError(
            f"{str(path)!r} is not a whole checkpoint: it has been altered since it was saved, "
            "its checksum is another."
        )


def _check_shapes(shapes: Mapping[str, list[int]], data: bytes, path: Path) -> None:
    """Raise if no file of that size can fill a shape: 10¹² × 0 numbers need no bytes at all."""
    size = len(data)
    for name, shape in shapes.items():
        if max(shape, default=0) > size:
            raise CheckpointError(
                f"{str(path)!r} is not a whole checkpoint: {name!r} has shape {tuple(shape)} in a "
                f"file of {size} bytes."
            )


def _check_types(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise if a tensor has an unsupported type."""
    for name, tensor in tensors.items():
        if tensor.dtype not in SAVED_TYPES:
            kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in SAVED_TYPES))
            raise CheckpointError(
                f"{str(path)!r} cannot hold {name!r}: its numbers are of type {tensor.dtype}. "
                f"Must be one of {kinds}."
            )


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors with ``prefix.`` before each name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose name starts with ``prefix.``, under the rest of their name."""
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def check_names(what: str, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a ``CheckpointError`` if a name is missing or unknown, or a shape differs."""
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


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the floating-point tensors that hold NaN or Inf."""
    return [
        name
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
    ]
