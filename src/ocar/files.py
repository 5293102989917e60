"""Write files all or nothing, and let one process at a time work in a folder."""

from __future__ import annotations

import glob
import os
import platform
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from ocar.errors import RunError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

PARTIAL = ".partial"
"""Suffix of a file that is being written; a killed process may leave one behind."""

_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # no link, no FIFO


@contextmanager
def new_file(path: Path, *, previous: Path | None = None) -> Iterator[IO[bytes]]:
    """A file that gets its name once it is complete and on the disk.

    What killed processes have left of the same file is removed.

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
            handle = os.open(left, os.O_RDWR | _CAREFUL)
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
            path.replace(previous)
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
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _CAREFUL, 0o666)
    except OSError as error:
        raise RunError(f"{folder} cannot be locked: {error}.") from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise RunError(f"{folder} cannot be locked: {path} is not a regular file. Remove it.")
        try:
            free = _lock(handle)
        except OSError as error:
            raise RunError(f"{folder} cannot be locked: {error}. Use a local disk.") from error
        if not free:
            holder = os.read(handle, 1000).decode(errors="replace").strip()
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
