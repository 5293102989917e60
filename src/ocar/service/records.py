"""The bytes of a journal file: a head, two marks, the keys of earlier batches, then records.

::

    head    magic  checksum  first number  length of the keys
    mark    checksum  number  end                in a sector of its own, twice
    keys    {key: [number, digest], ...}         JSON
    record  magic  checksum  number  length of key  length of batch | key | batch, safetensors

A mark names the last batch that was on the disk, and where its record ends. It is written after
that record was synced, and synced before the batch is acknowledged. So everything up to the mark is
right or was damaged later, and nothing after it was acknowledged: whatever a kill or a loss of
power has left there is cut off. The marks are written in turn: one is whole while the other is
written.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from safetensors.torch import load as deserialize
from safetensors.torch import save as serialize
from torch import Tensor

from ocar.structure import Inputs, from_parts, parts_of, with_name, without_name

_HEAD = struct.Struct("<8sIQI")
_MARK = struct.Struct("<IQQ")
_RECORD = struct.Struct("<4sIQHI")
_FILE_MAGIC, _RECORD_MAGIC = b"ocarjrn2", b"ocjr"

MARKS_AT = (512, 1024)
"""Where the marks are in a file."""

_KEYS_AT = 1536


class Known(NamedTuple):
    """What is known of a key: the batch that came with it."""

    number: int
    digest: str


class Mark(NamedTuple):
    """The last batch of a file, and where its record ends."""

    number: int
    end: int


class Record(NamedTuple):
    """A batch in a file."""

    number: int
    key: str
    batch: bytes
    end: int

    @property
    def known(self) -> Known:
        """What to remember of its key."""
        return Known(self.number, digest(self.batch))

    def tensors(self) -> tuple[Inputs, Tensor]:
        """Samples ``(n, ...)`` and labels ``(n,)``."""
        found = deserialize(self.batch)
        return from_parts(without_name("x", found)), found["y"]


def pack_batch(x: Inputs, y: Tensor) -> bytes:
    """Samples ``(n, ...)`` and labels ``(n,)`` as bytes."""
    parts = {**with_name("x", parts_of(x)), "y": y}
    return serialize({name: part.contiguous() for name, part in parts.items()})


def digest(batch: bytes) -> str:
    """What tells one batch from another."""
    return hashlib.blake2b(batch, digest_size=16).hexdigest()


def pack_record(number: int, key: str, batch: bytes) -> bytes:
    """A record."""
    name = key.encode()
    rest = struct.pack("<QHI", number, len(name), len(batch)) + name + batch
    return _RECORD_MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


def pack_mark(mark: Mark) -> bytes:
    """A mark."""
    rest = struct.pack("<QQ", *mark)
    return struct.pack("<I", zlib.crc32(rest)) + rest


def pack_file(first: int, keys: Mapping[str, Known], records: Iterable[tuple[str, bytes]]) -> bytes:
    """A file whose records, of keys and batches, are numbered from ``first``."""
    names = json.dumps(keys).encode()
    numbered = [pack_record(n, *record) for n, record in enumerate(records, start=first)]
    rest = struct.pack("<QI", first, len(names))
    head = _FILE_MAGIC + struct.pack("<I", zlib.crc32(names, zlib.crc32(rest))) + rest
    end = _KEYS_AT + len(names) + sum(map(len, numbered))
    mark = pack_mark(Mark(first + len(numbered) - 1, end))
    return b"".join([head.ljust(512, b"\0"), 2 * mark.ljust(512, b"\0"), names, *numbered])


def read_head(data: bytes) -> tuple[int, dict[str, Known], int] | None:
    """First number, keys, and where the records begin; None if the head is damaged."""
    if len(data) < _KEYS_AT:
        return None
    magic, checksum, first, length = _HEAD.unpack_from(data)
    names = data[_KEYS_AT : _KEYS_AT + length]
    covered = zlib.crc32(names, zlib.crc32(struct.pack("<QI", first, length)))
    if magic != _FILE_MAGIC or checksum != covered:
        return None
    keys = {key: Known(*known) for key, known in json.loads(names).items()}
    return first, keys, _KEYS_AT + length


def read_marks(data: bytes) -> list[Mark | None]:
    """The marks of a file; None for one that is damaged."""
    if len(data) < _KEYS_AT:
        return [None, None]
    marks = [(at, Mark(*_MARK.unpack_from(data, at)[1:])) for at in MARKS_AT]
    return [mark if data[at : at + _MARK.size] == pack_mark(mark) else None for at, mark in marks]


def read_record(data: bytes, at: int) -> Record | None:
    """The record that begins at a place; None if it is not whole."""
    if len(data) - at < _RECORD.size:
        return None
    magic, checksum, number, name, batch = _RECORD.unpack_from(data, at)
    start = at + _RECORD.size
    end = start + name + batch
    covered = memoryview(data)[at + 8 : end]
    if magic != _RECORD_MAGIC or end > len(data) or zlib.crc32(covered) != checksum:
        return None
    return Record(number, data[start : start + name].decode(), data[start + name : end], end)


def whole_records(data: bytes) -> Iterator[Record]:
    """All records that are whole, also after one that is not."""
    at = 0
    while (at := data.find(_RECORD_MAGIC, at)) >= 0:
        record = read_record(data, at)
        if record is not None:
            yield record
        at = at + 1 if record is None else record.end
