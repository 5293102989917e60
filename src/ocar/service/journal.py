"""A journal of labelled batches: on the disk before they are acknowledged, read again after a kill.

It is a few files, each begun after a checkpoint and named by its first batch;
:mod:`ocar.service.records` says what is in one. A client may give its batch a key. The keys of
recent batches survive checkpoints, so that a batch that is sent again is found.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ocar.errors import ConfigError, DataError
from ocar.files import naming, open_regular, read_file, sync_folder, write_whole
from ocar.service.records import (
    MARKS_AT,
    Known,
    Mark,
    Record,
    digest,
    pack_batch,
    pack_file,
    pack_mark,
    pack_record,
    read_head,
    read_marks,
    read_record,
    whole_records,
)
from ocar.structure import Inputs

KEYS = 4096
"""How many keys are remembered."""


class Journal:
    """Appends batches, gives them back in order, and forgets what a checkpoint holds.

    Args:
        folder: Where its files are; nobody else writes there (:func:`ocar.files.folder_lock`).
        after: Number of the last batch in the checkpoint. Earlier files are not read.
        keys: How many keys are remembered.

    Attributes:
        last: Number of the last batch; batches count from 1.
        generation: How often a repair or a rollback has begun the journal anew.
        failure: Why nothing can be appended until the journal is opened again; empty if it can.

    Raises:
        DataError: A file is damaged or missing.
    """

    def __init__(self, folder: Path, *, after: int, keys: int = KEYS) -> None:
        self.folder, self.failure = folder, ""
        self._lock, self._most = threading.Lock(), keys
        self.generation, found = files(folder)
        if not found:
            self._write_new(after + 1, {})
            _, found = files(folder)
        needed = [path for path, first in found if first > after]
        begun = [path for path, first in found if first <= after + 1]
        self._read(dict.fromkeys([*begun[-1:], *needed]), after)

    def _read(self, paths: dict[Path, None], after: int) -> None:
        """Check the files, and open the last."""
        expected = after + 1
        self._records: list[Record] = []
        for place, path in enumerate(paths):
            first, keys, records, mark, marks = _contents(path)
            if first > expected or (place and first != expected):
                raise _damaged(path, f"it begins with batch {first}; {expected} was to follow")
            self._records += [record for record in records if record.number > after]
            expected = mark.number + 1
        if expected <= after:
            raise _damaged(path, f"it ends with batch {expected - 1}; the checkpoint has {after}")
        self._path, self._first, self.last = path, first, mark.number
        self._keys = keys
        for record in records:
            self._remember(record.key, record.known)
        with naming(path):
            self._file = open_regular(path, "r+b", buffering=0)
        self._marks = [each or mark for each in marks]
        try:
            if None in marks:  # only then: a whole one is not put at risk
                _write(self._file.fileno(), pack_mark(mark), MARKS_AT[marks.index(None)])
                os.fsync(self._file.fileno())
            os.ftruncate(self._file.fileno(), mark.end)  # after it nothing was promised
            os.fsync(self._file.fileno())
        except OSError:
            self._file.close()
            raise

    def known(self, key: str, x: Inputs, y: Tensor) -> int | None:
        """The number of the batch that came with a key; None if there is none.

        Raises:
            DataError: The key came with another batch.
        """
        with self._lock:
            known = self._keys.get(key) if key else None
        if known is None:
            return None
        if known.digest != digest(pack_batch(x, y)):
            raise DataError(f"The key {key!r} came with another batch, number {known.number}.")
        return known.number

    def append(self, x: Inputs, y: Tensor, *, key: str = "") -> int:
        """Write a batch; when this returns its number it is on the disk.

        ``key`` is what the client calls it, see :meth:`known`.

        Raises:
            OSError: The batch is not in the journal or, if :attr:`failure` is set, may be.
        """
        batch = pack_batch(x, y)
        with self._lock, naming(self._path):
            if self.failure:
                raise OSError(errno.EIO, self.failure)
            number = self.last + 1
            record, end = pack_record(number, key, batch), max(self._marks).end
            mark, place = Mark(number, end + len(record)), number % 2
            try:
                _write(self._file.fileno(), record, end)
                os.fsync(self._file.fileno())
                _write(self._file.fileno(), pack_mark(mark), MARKS_AT[place])
                os.fsync(self._file.fileno())
            except BaseException:
                self._roll_back(place)
                raise
            self._marks[place], self.last = mark, number
            self._remember(key, Known(number, digest(batch)))
            return number

    def _roll_back(self, place: int) -> None:
        """Make the file what it was before a batch was appended."""
        try:
            _write(self._file.fileno(), pack_mark(self._marks[place]), MARKS_AT[place])
            os.fsync(self._file.fileno())
            os.ftruncate(self._file.fileno(), max(self._marks).end)
            os.fsync(self._file.fileno())
        except OSError as error:
            self.failure = f"{self._path} cannot be written: {error.strerror}"

    def batches(self) -> Iterator[tuple[Inputs, Tensor]]:
        """What was found at the start and is not in the checkpoint, in order; empty after that."""
        self._records, found = [], self._records
        for record in found:
            yield record.tensors()

    def trim(self, *, needed: int) -> None:
        """Begin a new file, and remove those in which all batches come before ``needed``.

        Raises:
            OSError: A file cannot be written or removed. Nothing is lost.
        """
        with self._lock:
            if self.failure:
                raise OSError(errno.EIO, self.failure)
            if self.last >= self._first:
                self._begin_file()
            for (path, _), (_, following) in pairwise(files(self.folder)[1]):
                if following <= needed:
                    path.unlink()

    def _begin_file(self) -> None:
        path = self._name(self.last + 1)
        try:
            mark = self._write_new(self.last + 1, self._keys)
            file = open_regular(path, "r+b", buffering=0)
        except OSError:
            try:  # the file in use goes on, so no other may follow it
                path.unlink(missing_ok=True)
                sync_folder(self.folder)
            except OSError as error:
                self.failure = f"{path} cannot be removed: {error.strerror}"
            raise
        self._file.close()
        self._file, self._path, self._first = file, path, self.last + 1
        self._marks = [mark, mark]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def clear(self) -> None:
        """Drop all batches, once they are in a checkpoint; their keys stay."""
        self.trim(needed=self.last + 1)
        remove_others(self.folder)

    def _name(self, first: int) -> Path:
        return _name(self.folder, self.generation, first)

    def _write_new(self, first: int, keys: dict[str, Known]) -> Mark:
        data = pack_file(first, keys, [])
        write_whole(self._name(first), data)
        return Mark(first - 1, len(data))

    def _remember(self, key: str, known: Known) -> None:
        if key:
            self._keys[key] = known
            while len(self._keys) > self._most:
                del self._keys[next(iter(self._keys))]


class Repaired(NamedTuple):
    """What :func:`repair` did."""

    kept: int  #: How many batches after the checkpoint are in the new journal.
    lost: list[int]  #: Numbers of the batches that could not be read, or were left out.


def roll_back(folder: Path, *, to: int) -> int:
    """Begin a new journal after batch ``to``; the keys of later batches are forgotten.

    Nobody else writes into the folder. Returns the new generation.
    """
    generation, found = files(folder)
    keys: dict[str, Known] = {}
    if found:
        _, keys, records, *_ = _contents(found[-1][0])
        keys |= {record.key: record.known for record in records if record.key}
    keys = {key: known for key, known in keys.items() if known.number <= to}
    write_whole(_name(folder, generation + 1, to + 1), pack_file(to + 1, keys, []))
    return generation + 1


def remove_others(folder: Path) -> None:
    """Remove the files of earlier generations."""
    kept = {path for path, _ in files(folder)[1]}
    for path in set(folder.glob("journal-*")) - kept:
        path.unlink()
    sync_folder(folder)


def repair(folder: Path, *, after: int, without: Collection[int] = ()) -> Repaired:
    """Begin a new journal with all batches after the checkpoint that can be read.

    They move up: their numbers are consecutive again. The old files stay and are not read any more.
    Nobody else writes into the folder. ``after`` is the last batch in the checkpoint; the batches
    ``without`` are left out too.

    Raises:
        ConfigError: A batch to leave out is not after the checkpoint.
    """
    generation, old = files(folder)
    found: dict[int, Record] = {}
    keys: dict[str, Known] = {}
    last = after
    for path, _ in old:
        data = read_file(path)
        head, marks = read_head(data), [mark for mark in read_marks(data) if mark]
        keys |= {} if head is None else head[1]
        end = max(marks).end if len(marks) == 2 else len(data)
        found |= {record.number: record for record in whole_records(data[:end])}
        last = max([last, *found, *(mark.number for mark in marks)])
    if unknown := set(without) - set(range(after + 1, last + 1)):
        known = f"{after + 1} to {last}" if last > after else "none"
        raise ConfigError(
            f"Invalid batches to leave out: {ranges(sorted(unknown))}. After the checkpoint there "
            f"are {known}."
        )
    found = {number: record for number, record in found.items() if number not in without}
    keys |= {record.key: record.known for record in found.values() if record.key}
    kept = [found[number] for number in sorted(found) if number > after]
    moved = {record.number: after + place for place, record in enumerate(kept, start=1)}
    keys = {
        key: known._replace(number=moved.get(known.number, known.number))
        for key, known in sorted(keys.items(), key=lambda item: item[1].number)
        if known.number <= after or known.number in moved
    }
    first = after + 1
    while first - 1 in found:  # for a start from the checkpoint before
        first -= 1
    all_kept = [*(found[number] for number in range(first, after + 1)), *kept]
    data = pack_file(first, keys, [(record.key, record.batch) for record in all_kept])
    write_whole(_name(folder, generation + 1, first), data)
    return Repaired(len(kept), [n for n in range(after + 1, last + 1) if n not in found])


def files(folder: Path) -> tuple[int, list[tuple[Path, int]]]:
    """The newest generation; its files and their first batches, in order."""
    pattern = re.compile(r"journal-(\d{3,})-(\d{12})")
    names = {path: pattern.fullmatch(path.name) for path in folder.iterdir()}
    found = sorted((int(m[1]), int(m[2]), path) for path, m in names.items() if m)
    newest = max([0, *(generation for generation, _, _ in found)])
    return newest, [(path, first) for generation, first, path in found if generation == newest]


def _contents(
    path: Path,
) -> tuple[int, dict[str, Known], list[Record], Mark, list[Mark | None]]:
    """First number, keys of earlier batches, records, the last mark and both marks of a file."""
    with naming(path):
        data = read_file(path)
    head, marks = read_head(data), read_marks(data)
    found = [mark for mark in marks if mark]
    if head is None or not found:
        raise _damaged(path, f"its {'head' if head is None else 'marks'} cannot be read")
    first, keys, at = head
    mark = max(found)
    if None in marks:  # a kill while the other was written: the next record was on the disk then
        following = read_record(data, mark.end)
        if following is None:
            raise _damaged(path, "one of its marks cannot be read")
        mark = Mark(following.number, following.end)
    records: list[Record] = []
    while at < mark.end and (record := read_record(data, at)) is not None:
        records.append(record)
        at = record.end
    if at != mark.end or [r.number for r in records] != list(range(first, mark.number + 1)):
        whole = {record.number for record in whole_records(data[: mark.end])}
        lost = [n for n in range(first, mark.number + 1) if n not in whole]
        what = f"{ranges(lost)} cannot be read" if lost else "there are bytes between them"
        raise _damaged(path, f"of batches {first} to {mark.number}, {what}")
    return first, keys, records, mark, marks


def _name(folder: Path, generation: int, first: int) -> Path:
    return folder / f"journal-{generation:03d}-{first:012d}"


def ranges(numbers: list[int]) -> str:
    """Increasing numbers in short: 1, 3-5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts) or "none"


def _damaged(path: Path, what: str) -> DataError:
    return DataError(
        f"{path} is damaged: {what}. Restore the file from a copy. Or go on without what cannot be "
        f"read: python -m ocar.service repair {path.parent}"
    )


def _write(handle: int, data: bytes, at: int) -> None:
    os.lseek(handle, at, os.SEEK_SET)
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
