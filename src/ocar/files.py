"""Files that are written all or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"
"""How the name of a file ends that is being written; a killed process may leave one behind."""


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
