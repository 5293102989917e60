"""Open regular files only, write them all or nothing, and print their texts safely."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, cast

PARTIAL = ".partial"
"""Suffix of a file that is being written; a killed process may leave one behind."""

# Windows has neither FIFOs among its files nor these flags.
_READ = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_WRITE = _READ | getattr(os, "O_NOFOLLOW", 0)


class NotRegularError(OSError):
    """A file is a link, a FIFO or a device where a regular file is needed."""

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(
    path: Path, mode: Literal["rb", "ab", "r+b", "xb"] = "rb", *, buffering: int = -1
) -> io.BufferedRandom:
    """Open a regular file; a FIFO, a socket or a device raises and never blocks.

    A file is read through links. It is not written through a link, symbolic or hard: that would
    change a file elsewhere.

    Raises:
        NotRegularError: It is not such a file.
    """
    opened = open(path, mode, buffering, opener=_open_checked)  # noqa: SIM115
    return cast("io.BufferedRandom", opened)


def _open_checked(path: str, flags: int) -> int:
    writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
    with suppress(FileNotFoundError, NotADirectoryError):  # which os.open reports
        _check(path, os.lstat(path) if writes else os.stat(path), writes=writes)  # noqa: PTH116
    file = os.open(path, flags | (_WRITE if writes else _READ), 0o666)
    try:
        _check(path, os.fstat(file), writes=writes)  # the name may be another file's by now
    except NotRegularError:
        os.close(file)
        raise
    return file


def _check(path: str, info: os.stat_result, *, writes: bool) -> None:
    reason = ""
    if stat.S_ISLNK(info.st_mode):
        reason = "it is a link, and writing would change a file elsewhere"
    elif not stat.S_ISREG(info.st_mode):
        reason = "it is no regular file"
    elif writes and info.st_nlink > 1:
        reason = "it has a second name (a hard link), and writing would change that file too"
    if reason:
        raise NotRegularError(errno.EINVAL, reason, path)


def read_file(path: Path, *, most: int | None = None) -> bytes:
    """The content of a regular file of at most ``most`` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes. Must be at most {most}", str(path))
        return file.read()


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name once it is complete and on the disk.

    A link of that name is replaced; the file that it leads to stays.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with naming(path):
            partial.unlink(missing_ok=True)  # a killed process had our number, or it is a trap
            with open_regular(partial, "xb") as file:
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


def printable(text: str, *, lines: bool = False) -> str:
    """A text from a file, or a file's name, with control characters by their codes, as in JSON.

    Then no file can move a cursor, turn the direction of writing or forge a line. With ``lines``
    line breaks stay.
    """
    if text.isprintable():
        return text
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    return "".join(c if c.isprintable() else _code(c) for c in text)


def _code(character: str) -> str:
    """As JSON writes it."""
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def printable_values(value: Any) -> Any:
    """Plain values, as JSON has them, with every text :func:`printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    if isinstance(value, dict):
        return {printable(name): printable_values(item) for name, item in value.items()}
    return value
