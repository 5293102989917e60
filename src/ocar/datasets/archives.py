"""Files in a folder, a zip archive or a gzipped tar archive.

Archives are read in place and never unpacked, so nothing is written. Names are relative, with ``/``
between their parts. An archive with a link, or with a name that points outside of it, is refused:
no publisher ships one.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import tarfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from ocar.errors import DataError
from ocar.files import open_regular, printable, read_file

MOST_BYTES = 64 << 20
"""Largest file of a :class:`Tree`: an image, or a list of images."""

MOST_TAR_BYTES = 1 << 30
"""Most bytes in a tar archive; CIFAR's have 0.19e9."""

_DEEPEST = 8
_IGNORED = re.compile(r"(?:\A|/)\.|/\Z")  # hidden entries and folders
_MOST_TRIES = 100  # reads after the end: tarfile asks for all that an entry claims to have

# A leading slash, a drive, a part that goes up, and the character that ends a name in C.
_OUTSIDE = re.compile(r"\A[/\\]|\A[A-Za-z]:|(?:\A|[/\\])\.\.(?:[/\\]|\Z)|\0")


def check_inside(name: str, where: Path | str) -> None:
    """Raise if a name, found in ``where``, points outside its folder."""
    if _OUTSIDE.search(name):
        raise DataError(f"{where}: its entry {name!r} points outside. Not allowed.")


def is_file(path: Path) -> bool:
    """Whether a file exists; unlike ``Path.is_file`` it raises if that may not be seen."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether a folder exists; unlike ``Path.is_dir`` it raises if that may not be seen."""
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    """0 if it does not exist."""
    with reading(path):
        try:
            return path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0


def cannot_read(where: Path | str, error: Exception) -> DataError:
    """An error that names the unreadable file and the reason."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return DataError(f"Cannot read {printable(str(where))}: {reason or type(error).__name__}.")


@contextmanager
def reading(where: Path | str) -> Iterator[None]:
    """Name the file in any error: a damaged one can raise anything."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise cannot_read(where, error) from error


class Tree(ABC):
    """Named files, without hidden ones, to list and read, by several threads at once.

    ``where`` is the folder or the archive; in messages ``prefix`` stands before a file's name.
    """

    def __init__(self, where: Path, prefix: str) -> None:
        self.where = where
        self._prefix = prefix

    @abstractmethod
    def files(self, under: str = "") -> dict[str, str]:
        """Files below a folder, sorted by name, each with a stamp that changes with its content."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of one file."""

    def locate(self, name: str) -> str:
        """The path of a file, for messages."""
        return printable(f"{self._prefix}{name}")

    def _check_size(self, name: str, size: int) -> None:
        if size > MOST_BYTES:
            raise DataError(f"{self.locate(name)} has {size} bytes. Must be at most {MOST_BYTES}.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 a folder has nothing to close
        """Close an archive."""


class Folder(Tree):
    """The files of a folder."""

    def __init__(self, where: Path) -> None:
        super().__init__(where, f"{where}/")

    def files(self, under: str = "") -> dict[str, str]:
        """Files below ``under``, sorted by name, with their size and time of change."""
        return dict(sorted(self._walk(under, depth=0)))

    def _walk(self, under: str, *, depth: int) -> Iterator[tuple[str, str]]:
        folder = self.where / under
        if depth > _DEEPEST:
            raise DataError(f"{folder} is {depth} folders deep. Must be at most {_DEEPEST}.")
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    name = f"{under}/{entry.name}" if under else entry.name
                    if entry.is_dir():
                        yield from self._walk(name, depth=depth + 1)
                    else:
                        info = entry.stat()
                        yield name, f"{info.st_size}@{info.st_mtime_ns}"
        except OSError as error:
            raise cannot_read(error.filename or folder, error) from error

    def read(self, name: str) -> bytes:
        """The content of one file."""
        path = self.where / name
        with reading(path):
            self._check_size(name, path.stat().st_size)
            return read_file(path)


class Zip(Tree):
    """The files of a zip archive; names are relative to the folder ``top`` in it."""

    def __init__(self, where: Path, *, top: str) -> None:
        super().__init__(where, f"{where}: {top}/")
        self.top = top
        self._entries: dict[str, zipfile.ZipInfo] = {}
        with ExitStack() as stack, reading(where):
            self._file = zipfile.ZipFile(stack.enter_context(open_regular(where)))
            for info in sorted(self._file.infolist(), key=lambda info: info.filename):
                name = info.filename
                check_inside(info.orig_filename, where)
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise DataError(f"{where}: its entry {name!r} is a link. Not allowed.")
                if name in self._entries:
                    raise DataError(f"{where}: its entry {name!r} occurs twice.")
                if name.startswith(f"{top}/") and not _IGNORED.search(name):
                    self._entries[name] = info
            self._exit = stack.pop_all()

    def files(self, under: str = "") -> dict[str, str]:
        """Files below ``under``, sorted by name, with their size and checksum."""
        start = f"{self.top}/{under}/" if under else f"{self.top}/"
        return {
            name.removeprefix(f"{self.top}/"): f"{info.file_size}#{info.CRC:08x}"
            for name, info in self._entries.items()
            if name.startswith(start)
        }

    def read(self, name: str) -> bytes:
        """The content of one file; its checksum is compared."""
        info = self._entries.get(f"{self.top}/{name}")
        if info is None:
            raise DataError(f"{self.where} has no entry {self.top}/{name}.")
        self._check_size(name, info.file_size)
        # The other methods do not bound the size of one decompressed piece.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(
                f"{self.locate(name)} is compressed by method {info.compress_type}. "
                "Must be stored or deflated."
            )
        with reading(self.locate(name)):
            # Python allocates the compressed size that an entry claims.
            if info.compress_size > self.where.stat().st_size:
                raise zipfile.BadZipFile("it claims more bytes than the archive has")
            with self._file.open(info) as entry:
                content = entry.read(info.file_size + 1)  # past the end, to compare the checksum
            if len(content) != info.file_size:
                raise zipfile.BadZipFile(f"it has {len(content)} bytes, not {info.file_size}")
            return content

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._exit.close()


def locate_tree(
    root: Path, places: Mapping[str, str], *, wanted: Collection[str] = ()
) -> tuple[Path, str] | None:
    """The first folder or archive that exists, and the top folder in an archive.

    Args:
        root: The data root.
        places: Folders under it that may hold the files, each with the archive of it.
        wanted: Files without which a folder comes after its archive.
    """
    for folder, archive in places.items():
        found = is_folder(root / folder)
        whole = found and all(is_file(root / folder / name) for name in wanted)
        if not whole and is_file(root / archive):
            return root / archive, Path(folder).name
        if found:
            return root / folder, ""
    return None


class _Bounded(io.RawIOBase):
    """Passes on at most ``most`` bytes, then fails."""

    def __init__(self, file: gzip.GzipFile, most: int) -> None:
        self._file = file
        self._left = most
        self._tries = 0

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(piece)
        if self._left < 0:
            raise OSError("it unpacks to more than any file of its kind")
        self._tries += not piece
        if self._tries > _MOST_TRIES:
            raise OSError("an entry claims more bytes than the archive has")
        return piece


def read_tar(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """Files of a gzipped tar archive, found in one pass to its end; missing ones are left out.

    Raises:
        DataError: The archive is damaged, or holds links, devices, or names that point outside.
    """
    found: dict[str, bytes] = {}
    with reading(path), open_regular(path) as file, gzip.GzipFile(fileobj=file) as unzipped:
        bounded = _Bounded(unzipped, MOST_TAR_BYTES)
        with tarfile.open(fileobj=bounded, mode="r|") as archive:
            for member in archive:
                _check_member(member, path, found)
                content = archive.extractfile(member) if member.name in wanted else None
                if content is not None:
                    found[member.name] = content.read()
        while bounded.read(1 << 20):  # gzip compares its checksum at the end
            pass
    return found


def _check_member(member: tarfile.TarInfo, path: Path, found: Collection[str]) -> None:
    check_inside(member.name, path)
    wrong = ""
    if not (member.isreg() or member.isdir()):
        wrong = "is a link or a device. Not allowed"
    elif member.issparse():  # holes of any size take no bytes
        wrong = "has holes. Not allowed"
    elif member.name in found:
        wrong = "occurs twice"
    if wrong:
        raise DataError(f"{path}: its entry {member.name!r} {wrong}.")
