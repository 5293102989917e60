"""Looking at paths and names with errors that say which one is wrong."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path

from ocar.errors import DataError

# A first slash, a drive, a part that goes up, and the character that ends a name in C.
_OUTSIDE = re.compile(r"\A[/\\]|\A[A-Za-z]:|(?:\A|[/\\])\.\.(?:[/\\]|\Z)|\0")


def check_inside(name: str, where: Path | str) -> None:
    """Refuse a name, found in ``where``, that does not stay below its folder."""
    if _OUTSIDE.search(name):
        raise DataError(f"{where}: its entry {name!r} points outside. Not allowed.")


def is_file(path: Path) -> bool:
    """Whether there is such a file; unlike ``Path.is_file`` never silent about missing rights."""
    return _is(path, stat.S_ISREG)


def is_folder(path: Path) -> bool:
    """Whether there is such a folder, likewise."""
    return _is(path, stat.S_ISDIR)


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise cannot_read(path, error) from error
    return kind(mode)


def cannot_read(where: Path | str, error: Exception) -> DataError:
    """The error that says which file could not be read, and why."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return DataError(f"Cannot read {where}: {reason or type(error).__name__}.")
