"""Open regular files only, write them all or nothing, lock folders, and print texts safely."""

from __future__ import annotations

import errno
import glob
import io
import os
import platform
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, cast

from ocar.errors import RunError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

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
def new_file(path: Path, *, previous: Path | None = None) -> Iterator[IO[bytes]]:
    """A file that gets its name once it is complete and on the disk.

    What killed processes have left of the same file is removed. A link of that name is replaced;
    the file that it leads to stays.

    Args:
        path: Its name, in a folder that exists.
        previous: The name that a file at ``path`` gets then; None to drop that file.
    """
    clear_partials(path.parent, path.name)
    with naming(path), ExitStack() as held:
        file, partial = _open_partial(path)
        held.callback(partial.unlink, missing_ok=True)
        with file:
            if sys.platform != "win32":  # there an open file cannot be renamed
                held.callback(os.close, os.dup(file.fileno()))  # keeps the lock until the rename
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous is not None:
            _keep(path, previous)
        partial.replace(path)
        sync_folder(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, in a folder that exists: under its name is the old content or the new."""
    with new_file(path) as file:
        file.write(data)


def _partial(path: Path) -> Path:
    """A name that no other thread or process uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")


def _open_partial(path: Path) -> tuple[IO[bytes], Path]:
    """A new file, locked as long as it is open: :func:`clear_partials` leaves it alone."""
    while True:
        partial = _partial(path)
        file = partial.open("xb")
        try:
            if sys.platform == "win32" or (
                _lock(file.fileno()) and os.fstat(file.fileno()).st_nlink
            ):
                return file, partial
        except OSError:  # a file system without locks; there nothing is cleared
            return file, partial
        file.close()  # cleared between the two calls: once more
        partial.unlink(missing_ok=True)


def clear_partials(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes were writing: of one file, or of all in a folder."""
    if sys.platform == "win32":
        return
    pattern = "*" if name is None else glob.escape(name)
    for left in folder.glob(f".{pattern}.*{PARTIAL}"):
        with suppress(OSError):  # it is gone, or the folder is not ours
            handle = os.open(left, os.O_RDWR | _WRITE)
            try:
                if _lock(handle):
                    left.unlink()
            finally:
                os.close(handle)


def _keep(path: Path, previous: Path) -> None:
    """Add a second name to a file, so that its own name never disappears."""
    while path.is_file():
        second = _partial(path)
        try:
            second.hardlink_to(path)
            second.replace(previous)
            return
        except FileNotFoundError:
            continue  # another process took the second name for a left-over
        except OSError:  # a file system without links: for a moment only the previous one exists
            with suppress(FileNotFoundError):  # another process has been faster
                path.replace(previous)
            return
        finally:
            second.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Let names that were made or removed in a folder reach the disk."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; when this returns they are on the disk."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time work in a folder that exists.

    The operating system holds the lock and drops it when the process ends, however it ends: a
    killed process leaves nothing to clean up. The file ``.lock`` names its holder, for the error of
    the next process.

    Raises:
        RunError: Another process holds the lock, or the folder cannot be locked.
    """
    path = folder / ".lock"
    try:
        handle = _open_checked(str(path), os.O_RDWR | os.O_CREAT)
    except NotRegularError as error:
        raise RunError(
            f"{path} cannot be written: {error}. Replace it by a plain copy, or remove it."
        ) from error
    except OSError as error:
        raise RunError(f"{folder} cannot be locked: {error}.") from error
    try:
        try:
            free = _lock(handle)
        except OSError as error:
            raise RunError(f"{folder} cannot be locked: {error}. Use a local disk.") from error
        if not free:
            holder = printable(os.read(handle, 1000).decode(errors="replace").strip())
            raise RunError(
                f"{folder} is in use by {holder or 'another process'}. "
                "Wait until it ends, or stop it, and start again."
            )
        with suppress(OSError):  # on a full disk the holder stays unnamed
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    """Lock an open file until it is closed; False if it is locked already."""
    try:
        if sys.platform == "win32":
            os.lseek(handle, 1 << 30, os.SEEK_SET)  # far from the text, which others read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


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


def encode(text: str) -> bytes:
    """A text as UTF-8. What a file's name has besides is written by its code, which JSON reads."""
    return text.encode(errors="backslashreplace")


def printable_values(value: Any) -> Any:
    """Plain values, as JSON has them, with every text :func:`printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    if isinstance(value, dict):
        return {printable(name): printable_values(item) for name, item in value.items()}
    return value
