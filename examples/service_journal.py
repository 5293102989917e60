"""A journal of labelled batches: on disk before they are acknowledged, read again after a kill.

It is a few files, each begun after a checkpoint and named by its first batch. A record is

    magic  checksum  number  samples  |  samples × pixels, uint8  |  samples × label, int64

A kill can leave the last record cut off; that batch was never acknowledged, and is dropped. A
record that is damaged with a good one after it is another matter: what was acknowledged would be
lost in silence, so nothing is read then and the error says where to look.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ocar.errors import DataError

MAGIC = b"ocjr"
HEAD = struct.Struct("<4sIQI")
COVERED = struct.Struct("<QI")


class Batch(NamedTuple):
    """A labelled batch and its number, from 1: how many will have been learned once it has."""

    number: int
    x: Tensor
    y: Tensor


class Journal:
    """Appends batches, gives them back in order, and forgets what a checkpoint holds.

    Args:
        folder: Where its files are; it exists.
        item: Shape of a sample.
        first: Number of the first batch, if there is no file yet.

    Attributes:
        last: Number of the last batch that is on disk.

    Raises:
        DataError: A file is damaged elsewhere than at its end, or one is missing.
    """

    def __init__(self, folder: Path, *, item: tuple[int, ...], first: int) -> None:
        self.folder = folder
        self.item = item
        self._lock = threading.Lock()
        files = self._files()
        self.last = max([first, *files]) - 1
        for batch in self.batches(after=self.last):
            self.last = batch.number
        self._path = files[max(files)] if files else self._name(first)
        self._cut_short()
        self._file = self._path.open("ab")
        sync_folder(folder)

    def append(self, x: Tensor, y: Tensor) -> int:
        """Write a batch; when this returns it is on disk.

        Args:
            x: Samples, ``(n, ...)`` uint8.
            y: Labels, ``(n,)`` int64.

        Returns:
            Its number.
        """
        with self._lock:
            number = self.last + 1
            covered = COVERED.pack(number, len(x)) + x.numpy().tobytes() + y.numpy().tobytes()
            self._file.write(MAGIC + struct.pack("<I", zlib.crc32(covered)) + covered)
            self._file.flush()
            os.fsync(self._file.fileno())
            self.last = number
            return number

    def batches(self, *, after: int) -> Iterator[Batch]:
        """The batches with a number above ``after``, in order."""
        expected: int | None = None
        for first, path in sorted(self._files().items()):
            if expected is not None and first != expected:
                raise DataError(f"{path} begins with batch {first}; {expected} was to follow.")
            expected = first
            data = path.read_bytes()
            for batch, _ in self._records(data, path):
                if batch.number != expected:
                    raise DataError(f"{path} has batch {batch.number} in place of {expected}.")
                expected += 1
                if batch.number > after:
                    yield batch

    def trim(self, *, needed: int) -> None:
        """Begin a new file, and remove those in which all batches come before ``needed``."""
        with self._lock:
            if self._path.stat().st_size:
                self._file.close()
                self._path = self._name(self.last + 1)
                self._file = self._path.open("ab")
                sync_folder(self.folder)
            files = sorted(self._files().items())
            for (_, path), (following, _) in itertools.pairwise(files):
                if following <= needed:
                    path.unlink()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _files(self) -> dict[int, Path]:
        """The files by the number of their first batch."""
        found = {p: re.fullmatch(r"journal-(\d{12})", p.name) for p in self.folder.iterdir()}
        return {int(match[1]): path for path, match in found.items() if match}

    def _name(self, first: int) -> Path:
        return self.folder / f"journal-{first:012d}"

    def _records(self, data: bytes, path: Path) -> Iterator[tuple[Batch, int]]:
        """Each batch, and where its record ends."""
        at = 0
        while (record := self._record(data, at)) is not None:
            yield record
            at = record[1]
        later = (m.start() for m in re.finditer(MAGIC, data[at + 1 :]))
        if any(self._record(data, at + 1 + offset) is not None for offset in later):
            raise DataError(
                f"{path} is damaged at byte {at}, with good batches after it. Restore the file, "
                "or remove it and those that follow, and lose these batches."
            )

    def _record(self, data: bytes, at: int) -> tuple[Batch, int] | None:
        """The record at a place and where it ends; None if it is not whole."""
        if len(data) - at < HEAD.size:
            return None
        magic, checksum, number, count = HEAD.unpack_from(data, at)
        start = at + HEAD.size
        pixels = count * torch.Size(self.item).numel()
        end = start + pixels + 8 * count
        covered = memoryview(data)[at + HEAD.size - COVERED.size : end]
        if magic != MAGIC or end > len(data) or zlib.crc32(covered) != checksum:
            return None
        x = torch.frombuffer(bytearray(data[start : start + pixels]), dtype=torch.uint8)
        y = torch.frombuffer(bytearray(data[start + pixels : end]), dtype=torch.int64)
        return Batch(number, x.view(count, *self.item), y), end

    def _cut_short(self) -> None:
        """Remove what a kill has left of a record at the end of the last file."""
        if self._path.exists():
            data = self._path.read_bytes()
            ends = [end for _, end in self._records(data, self._path)]
            os.truncate(self._path, ends[-1] if ends else 0)


def sync_folder(folder: Path) -> None:
    """Let names that were made or removed in a folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
