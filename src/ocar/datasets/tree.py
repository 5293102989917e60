"""Files of a data set, in a folder or in the zip archive that its publisher ships.

Archives are read in place and never unpacked, so nothing is written anywhere. Names are
relative, with ``/`` between their parts. An archive with a name that points outside of it, or
with a link, is refused whole: no publisher ships one.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from ocar.datasets.paths import cannot_read, check_inside, is_file, is_folder
from ocar.errors import DataError

_MOST_BYTES = 64 << 20  # of one file: an image, a list of images
_DEEPEST = 8
_IGNORED = re.compile(r"(?:\A|/)\.|/\Z")  # hidden entries and folders


class Tree(ABC):
    """Named files that can be listed and read, by several threads at once.

    Args:
        where: The folder or the archive.
    """

    def __init__(self, where: Path) -> None:
        self.where = where

    @abstractmethod
    def files(self, under: str = "") -> dict[str, str]:
        """Files below a folder, sorted by name, each with a stamp that changes if it does."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of one file."""

    @abstractmethod
    def locate(self, name: str) -> str:
        """The place of a file, for messages."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Folder(Tree):
    """The files of a folder; hidden ones are left out."""

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
        try:
            size = path.stat().st_size
            if size > _MOST_BYTES:
                raise _too_large(self.locate(name), size)
            return path.read_bytes()
        except OSError as error:
            raise cannot_read(path, error) from error

    def locate(self, name: str) -> str:
        """The path of a file."""
        return str(self.where / name)

    def close(self) -> None:
        """Nothing is open."""


class Zip(Tree):
    """The files of a zip archive; hidden ones are left out.

    Args:
        where: The archive.
        top: The folder in it that names are relative to.
    """

    def __init__(self, where: Path, *, top: str) -> None:
        super().__init__(where)
        self.top = top
        try:
            self._file = zipfile.ZipFile(where)
        except Exception as error:  # a damaged archive can raise anything
            raise cannot_read(where, error) from error
        self._entries: dict[str, zipfile.ZipInfo] = {}
        try:
            for info in sorted(self._file.infolist(), key=lambda info: info.filename):
                self._add(info)
        except DataError:
            self.close()
            raise

    def _add(self, info: zipfile.ZipInfo) -> None:
        check_inside(info.orig_filename, self.where)
        if stat.S_ISLNK(info.external_attr >> 16):
            raise DataError(f"{self.where}: its entry {info.filename!r} is a link. Not allowed.")
        if info.filename in self._entries:
            raise DataError(f"{self.where}: its entry {info.filename!r} is there twice.")
        if info.filename.startswith(f"{self.top}/") and not _IGNORED.search(info.filename):
            self._entries[info.filename] = info

    def files(self, under: str = "") -> dict[str, str]:
        """Files below ``under``, sorted by name, with their size and checksum."""
        start = f"{self.top}/{under}/" if under else f"{self.top}/"
        return {
            name.removeprefix(f"{self.top}/"): f"{info.file_size}#{info.CRC:08x}"
            for name, info in self._entries.items()
            if name.startswith(start)
        }

    def read(self, name: str) -> bytes:
        """The content of one file, compared with its checksum."""
        info = self._entries.get(f"{self.top}/{name}")
        if info is None:
            raise DataError(f"{self.where} has no entry {self.top}/{name}.")
        if info.file_size > _MOST_BYTES:
            raise _too_large(self.locate(name), info.file_size)
        # The other methods do not bound what one compressed piece becomes.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(
                f"{self.locate(name)} is compressed by method {info.compress_type}. "
                "Must be stored or deflated."
            )
        try:
            # Python reserves all that an entry claims to take up in the archive.
            if info.compress_size > self.where.stat().st_size:
                raise zipfile.BadZipFile("it claims more bytes than the archive has")
            with self._file.open(info) as entry:
                content = entry.read(info.file_size + 1)  # to its end: the checksum is looked at
            if len(content) != info.file_size:
                raise zipfile.BadZipFile(f"it has {len(content)} bytes, not {info.file_size}")
        except Exception as error:  # a damaged archive can raise anything
            raise cannot_read(self.locate(name), error) from error
        return content

    def locate(self, name: str) -> str:
        """The archive and the entry in it."""
        return f"{self.where}: {self.top}/{name}"

    def close(self) -> None:
        """Close the archive."""
        self._file.close()


def locate_tree(root: Path, *, folder: str, archive: str) -> Path | None:
    """The folder under ``root``, else the archive, else None if neither is there."""
    if is_folder(root / folder):
        return root / folder
    return root / archive if is_file(root / archive) else None


def open_tree(root: Path, *, folder: str, archive: str) -> Tree | None:
    """The folder under ``root``, else what the archive holds of it, else None.

    Args:
        root: The data root.
        folder: Path of the folder under it; its last part is the archive's top folder.
        archive: Path of the zip archive under it.
    """
    where = locate_tree(root, folder=folder, archive=archive)
    if where is None:
        return None
    return Folder(where) if where == root / folder else Zip(where, top=Path(folder).name)


def _too_large(where: str, size: int) -> DataError:
    return DataError(f"{where} has {size} bytes. Must be at most {_MOST_BYTES}.")
