"""A cache of decoded images, mapped into memory.

A data set of many image files is decoded once into ``<folder>/<name>-<fingerprint>.npy``, with a
small JSON note next to it. The fingerprint is a hash of the source files, so changed sources give
another file. Each file is written under another name, synced and renamed, the note last, so an
entry is complete or does not exist. The note holds size and checksum of the array. They are
compared when a process first uses the array; a damaged entry is made again.

Nothing depends on the cache: if it cannot be written, the images are decoded into memory.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ocar.files import PARTIAL, NotRegularError, new_file, open_regular, read_file, write_whole

if sys.platform != "win32":
    import fcntl

Images = npt.NDArray[np.uint8]
"""``(n, channels, height, width)``."""

CACHE = ".ocar-cache"
"""Name of the cache's folder in a data root."""

_FORMAT = 1
_MOST_NOTE = 1 << 20
_compared: set[tuple[str, int, int, int]] = set()  # arrays whose checksum was compared


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One array in the cache, whether it exists or not."""

    folder: Path  #: The cache's folder.
    name: str  #: Name and image size of the data set.
    fingerprint: str  #: Hash of the source files, hexadecimal.
    shape: tuple[int, ...]  #: Shape of the array.

    @property
    def array_path(self) -> Path:
        """The file with the pixels."""
        return self.folder / f"{self.name}-{self.fingerprint[:16]}.npy"

    @property
    def note_path(self) -> Path:
        """The file with size and checksum of the array."""
        return self.array_path.with_suffix(".json")

    def load(self) -> Images | None:
        """The array, mapped copy-on-write; None if it does not exist.

        Raises:
            ValueError: It is damaged.
        """
        try:
            note = _read_note(self.note_path)
            if note["fingerprint"] != self.fingerprint:
                raise ValueError("it is of other files")
            _compare(self.array_path, note, again=False)
            # numpy's own reader would trust the header.
            header = _header(self.shape)
            with open_regular(self.array_path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != len(header) + math.prod(self.shape) or file.read(len(header)) != header:
                    raise ValueError(f"it holds no uint8 of {self.shape}")
                return np.memmap(file, np.uint8, "c", offset=len(header), shape=self.shape)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NotRegularError as error:
            raise ValueError(error) from error

    def write(self, rows: Iterator[Images]) -> None:
        """Write the array row by row, then the note."""
        header = _header(self.shape)
        size = len(header) + math.prod(self.shape)
        digest = hashlib.sha256(header)
        with new_file(self.array_path) as file:
            _reserve(file, size)
            file.write(header)
            for row in rows:
                digest.update(row.data)
                file.write(row.data)
        note = {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "shape": self.shape,
            "bytes": size,
            "sha256": digest.hexdigest(),
        }
        write_whole(self.note_path, json.dumps(note).encode())


def load_or_make(entry: Entry, make: Callable[[], Iterator[Images]]) -> Images:
    """The array of an entry; if it does not exist, it is made of the rows that ``make`` yields.

    Writing to it does not change the file.
    """
    try:
        with suppress(ValueError):
            array = entry.load()
            if array is not None:
                return array
        entry.folder.mkdir(parents=True, exist_ok=True)
        with open_regular(entry.folder / ".lock", "ab") as lock:
            if sys.platform != "win32":
                with suppress(OSError):  # some network file systems have no locks
                    fcntl.flock(lock, fcntl.LOCK_EX)  # others would do the same work
            try:
                array = entry.load()  # another process may have made it
            except ValueError as error:
                array = None
                warnings.warn(
                    f"The cache file {entry.array_path} is damaged and made again: {error}.",
                    stacklevel=2,
                )
            if array is None:
                _sweep(entry)
                entry.write(make())
                array = entry.load()
            if array is not None:
                return array
    except OSError as error:
        warnings.warn(
            f"Cannot keep decoded images in {entry.folder} ({error.strerror or error}): "
            f"{entry.name} is decoded into memory, each time.",
            stacklevel=2,
        )
    array = np.empty(entry.shape, dtype=np.uint8)
    for place, row in enumerate(make()):
        array[place] = row
    return array


def verify_cache(folder: Path, name: str) -> str:
    """Compare all entries of a data set, of any image size, with their checksums.

    Returns what is wrong with the first damaged one; empty if nothing is.
    """
    for path in sorted(folder.glob("*.json")):
        if not re.fullmatch(rf"{re.escape(name)}-\d+-[0-9a-f]{{16}}\.json", path.name):
            continue
        try:
            _compare(path.with_suffix(".npy"), _read_note(path), again=True)
        except (OSError, ValueError) as error:
            return f"The cache file {path.with_suffix('.npy')} is damaged: {error}."
    return ""


def _header(shape: tuple[int, ...]) -> bytes:
    """The header of numpy's file of an array."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def _read_note(path: Path) -> dict[str, Any]:
    try:
        note = json.loads(read_file(path, most=_MOST_NOTE))
    except RecursionError:
        note = None
    wanted = {"format": int, "fingerprint": str, "shape": list, "bytes": int, "sha256": str}
    if not isinstance(note, dict) or {key: type(note[key]) for key in note} != wanted:
        raise ValueError(f"{path.name} is no note of a cache file")
    if note["format"] != _FORMAT:
        raise ValueError(f"it has format {note['format']}, not {_FORMAT}")
    return note


def _compare(path: Path, note: Mapping[str, Any], *, again: bool) -> None:
    """Raise ValueError if an array differs from its note; hashed once a process, or ``again``."""
    with open_regular(path) as file:
        info = os.fstat(file.fileno())
        if info.st_size != note["bytes"]:
            raise ValueError(f"it has {info.st_size} bytes, not {note['bytes']}")
        key = (str(path), info.st_ino, info.st_size, info.st_mtime_ns)
        if key in _compared and not again:
            return
        if hashlib.file_digest(file, "sha256").hexdigest() != note["sha256"]:
            _compared.discard(key)
            raise ValueError("its checksum is wrong")
        _compared.add(key)


def _reserve(file: IO[bytes], size: int) -> None:
    """Fail now, not after minutes of decoding, if the disk is too full."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # this file system cannot
            raise


def _sweep(entry: Entry) -> None:
    """Remove entries of this data set from other sources, and files of killed processes."""
    for path in entry.folder.iterdir():
        left = path.name.endswith(PARTIAL) and path.name.startswith(f".{entry.name}-")
        if left or re.fullmatch(rf"{re.escape(entry.name)}-[0-9a-f]{{16}}\.(npy|json)", path.name):
            path.unlink(missing_ok=True)
