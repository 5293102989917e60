"""Write files all or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PARTIAL = ".partial"
"""Suffix of a file that is being written; a killed process may leave one behind."""


def beside(path: Path) -> Path:
    """A new name in the folder of a file, for what is being written; nobody else has it."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}{PARTIAL}")


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name once it is complete and on the disk."""
    partial = beside(path)
    try:
        with naming(path), partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, in a folder that exists: under its name is the old content or the new."""
    with new_file(path) as file:
        file.write(data)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to an ``OSError``: the system leaves it out once a file is open."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
