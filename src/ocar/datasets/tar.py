"""A gzipped tar archive, read in place and never unpacked."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Collection
from pathlib import Path

from ocar.datasets.paths import cannot_read, check_inside
from ocar.errors import DataError

_MOST_BYTES = 1 << 30  # of everything in an archive: CIFAR's have 0.19e9
_MOST_TRIES = 100  # to read on after the end: tarfile asks for all that an entry claims to have


class _Bounded(io.RawIOBase):
    """Passes on at most so many bytes, then fails."""

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
    """Files of a gzipped tar archive, found in one pass to its end.

    Args:
        path: The archive.
        wanted: Names of the files; those that are not there are left out.

    Raises:
        DataError: The archive is damaged, or holds links, devices, or names that point
            outside of it.
    """
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path, "rb") as unzipped:
            bounded = _Bounded(unzipped, _MOST_BYTES)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                for member in archive:
                    check_inside(member.name, path)
                    if not (member.isreg() or member.isdir()):
                        raise DataError(
                            f"{path}: its entry {member.name!r} is a link or a device. Not allowed."
                        )
                    if member.issparse():  # holes of any size, which take no bytes
                        raise DataError(
                            f"{path}: its entry {member.name!r} has holes. Not allowed."
                        )
                    if member.name in found:
                        raise DataError(f"{path}: its entry {member.name!r} is there twice.")
                    content = archive.extractfile(member) if member.name in wanted else None
                    if content is not None:
                        found[member.name] = content.read()
            while bounded.read(1 << 20):  # gzip checks its sum at the end
                pass
    except DataError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise cannot_read(path, error) from error
    return found
