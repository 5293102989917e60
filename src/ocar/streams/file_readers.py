"""Readers of files: CSV, Parquet and tar shards.

Several files are read one after another, and row numbers continue from file to file. An error in a
file is a :class:`~ocar.errors.DataError` that names the file.
"""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import json
import math
import tarfile
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import IO, Any, Unpack

import numpy as np
import numpy.typing as npt
from PIL import UnidentifiedImageError

from ocar.config import require
from ocar.datasets.archives import MOST_BYTES, reading
from ocar.datasets.decoding import decode
from ocar.datasets.pictures import is_picture
from ocar.errors import ConfigError, DataError, MissingPackageError
from ocar.files import open_regular
from ocar.streams.readers import CHUNK, Record, RecordOptions, RecordReader

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


class FileReader(RecordReader):
    """Records in files.

    Args:
        paths: A file, or several in their order.

    The other arguments are those of :class:`~ocar.streams.readers.RecordReader`.
    """

    def __init__(self, paths: Paths, **record: Unpack[RecordOptions]) -> None:
        super().__init__(**record)
        given = [paths] if isinstance(paths, (str, PathLike)) else list(paths)
        if not given:
            raise ConfigError("Invalid paths: none given. Must be at least one file.")
        self.paths = [Path(path) for path in given]

    @abstractmethod
    def named(self, start: int) -> Iterator[tuple[str, Record]]:
        """The records from a row on, each with its file and its place there."""

    def records(self, start: int) -> Iterator[Record]:
        """The records from a row on."""
        return (record for _, record in self.named(start))


class CSVReader(FileReader):
    """Rows of CSV files whose first line names the columns.

    Args:
        paths: A file, or several with the same columns.
        delimiter: Between two columns.

    The other arguments are those of :class:`~ocar.streams.readers.RecordReader`.
    """

    def __init__(
        self, paths: Paths, *, delimiter: str = ",", **record: Unpack[RecordOptions]
    ) -> None:
        super().__init__(paths, **record)
        self.delimiter = delimiter

    def named(self, start: int) -> Iterator[tuple[str, Record]]:
        """The rows from one on; those before are parsed and left."""
        left = start
        for path in self.paths:
            with reading(path), open_regular(path, "rb") as file:
                text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
                rows = csv.DictReader(text, delimiter=self.delimiter, strict=True)
                names = list(rows.fieldnames or ())
                if twice := [name for name, count in Counter(names).items() if count > 1]:
                    raise DataError(f"{path}: column {twice[0]!r} is there {names.count(twice[0])} "
                                    "times. Must have a name of its own.")  # fmt: skip
                left -= sum(1 for _ in itertools.islice(rows, left))
                for row in rows:
                    if None in row or None in row.values():
                        raise DataError(
                            f"{path}, line {rows.line_num}: it must have a value for each of "
                            f"{len(names)} columns."
                        )
                    yield f"{path}, line {rows.line_num}", row


class ParquetReader(FileReader):
    """Rows of Parquet files, read by polars or pyarrow.

    Args:
        paths: A file, or several with the same columns.

    The other arguments are those of :class:`~ocar.streams.readers.RecordReader`.

    Raises:
        MissingPackageError: Neither package is installed.
    """

    def __init__(self, paths: Paths, **record: Unpack[RecordOptions]) -> None:
        super().__init__(paths, **record)
        self._read = _parquet()

    def named(self, start: int) -> Iterator[tuple[str, Record]]:
        """The rows from one on."""
        left = start
        for path in self.paths:
            with reading(path):
                count, rows = self._read(path, left)
                for row, record in enumerate(rows, start=left):
                    yield f"{path}, row {row}", record
                left = max(0, left - count)


ParquetRows = Callable[[Path, int], tuple[int, Iterator[Record]]]
"""Of a file: how many rows it has, and those from one on."""


def _parquet() -> ParquetRows:
    with suppress(ImportError):
        return partial(_by_polars, importlib.import_module("polars"))
    with suppress(ImportError):
        return partial(_by_pyarrow, importlib.import_module("pyarrow.parquet"))
    raise MissingPackageError("Parquet needs polars or pyarrow: pip install polars")


def _by_polars(polars: Any, path: Path, start: int) -> tuple[int, Iterator[Record]]:
    table = polars.scan_parquet(path, glob=False)  # [1] and * are parts of a name
    count = int(table.select(polars.len()).collect().item())
    parts = (table.slice(at, CHUNK).collect() for at in range(start, count, CHUNK))
    return count, (row for part in parts for row in part.iter_rows(named=True))


def _by_pyarrow(parquet: Any, path: Path, start: int) -> tuple[int, Iterator[Record]]:
    file = parquet.ParquetFile(path)

    def rows() -> Iterator[Record]:
        left = start
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if left < size:  # other groups are not read
                yield from itertools.islice(file.read_row_group(group).to_pylist(), left, None)
            left = max(0, left - size)

    return file.metadata.num_rows, rows()


class TarReader(FileReader):
    """Samples in tar shards, as WebDataset writes them.

    Files that follow each other with the same name up to the first dot are one sample, and what
    comes after the dot is the name of a field: ``0001.png`` and ``0001.cls`` are a record with
    ``"png"`` and ``"cls"``. Read are images, ``npy``, ``json``, and text as ``cls``, ``id`` and
    ``txt``. The shards are not compressed, so a sample before the place is skipped unread.

    Args:
        paths: A shard, or several in their order.
        image_size: Height and width of images, see :func:`ocar.datasets.decoding.decode`.
        decoders: Functions of the bytes of other fields, by name; they also replace ours.

    The other arguments are those of :class:`~ocar.streams.readers.RecordReader`.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        image_size: int = 32,
        decoders: Mapping[str, Callable[[bytes], Any]] | None = None,
        **record: Unpack[RecordOptions],
    ) -> None:
        super().__init__(paths, **record)
        require("image_size", image_size, image_size >= 1, "at least 1")
        self.image_size = image_size
        self.decoders = dict(decoders or {})

    def named(self, start: int) -> Iterator[tuple[str, Record]]:
        """The samples from one on."""
        row = 0
        for path in self.paths:
            with reading(path), ExitStack() as opened:
                file = opened.enter_context(open_regular(path, "rb"))
                tar = opened.enter_context(tarfile.open(fileobj=file, mode="r:"))
                members = _members(tar, file, path)
                for key, group in itertools.groupby(members, lambda one: _split(one.name)[0]):
                    if row >= start:
                        fields = {_split(member.name)[1]: member for member in group}
                        yield f"{path}, sample {key!r}", _Sample(self, tar, fields)
                    row += 1

    def decode(self, field: str, data: bytes) -> Any:
        """The value of a field."""
        kind = field.rpartition(".")[2].lower()
        if (own := self.decoders.get(field) or self.decoders.get(kind)) is not None:
            return own(data)
        if is_picture(f"x.{kind}"):
            with suppress(UnidentifiedImageError):
                return decode(data, self.image_size)
            raise DataError(f"its {len(data)} bytes are no image")
        if kind == "npy":
            return _read_npy(data)
        if kind == "json":
            return json.loads(data)
        if kind in ("cls", "id", "txt"):
            return data.decode().strip()
        raise DataError(f"field {field!r} is not read. Give decoders={{{field!r}: function}}.")


class _Sample(Mapping[str, Any]):
    """A record of a tar shard; a field is read and decoded when it is asked for."""

    def __init__(
        self,
        reader: TarReader,
        tar: tarfile.TarFile,
        fields: dict[str, tarfile.TarInfo],
    ) -> None:
        self._reader, self._tar, self._fields = reader, tar, fields

    def __getitem__(self, field: str) -> Any:
        member = self._fields[field]
        try:
            if member.size > MOST_BYTES:
                raise DataError(f"it has {member.size} bytes. At most {MOST_BYTES}.")
            found = self._tar.extractfile(member)
            data = b"" if found is None else found.read()
            if len(data) != member.size:
                raise DataError(f"it has {len(data)} of {member.size} bytes")
            return self._reader.decode(field, data)
        except Exception as error:
            raise DataError(f"cannot read {member.name}: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _members(tar: tarfile.TarFile, file: IO[bytes], path: Path) -> Iterator[tarfile.TarInfo]:
    """The regular files of a shard. tarfile takes a damaged header for the end."""
    yield from (member for member in tar if member.isreg() and not member.issparse())
    file.seek(tar.offset)
    if any(file.read(tarfile.BLOCKSIZE)):
        raise DataError(f"Cannot read {path}: at byte {tar.offset} is neither a file nor the end.")


def _read_npy(data: bytes) -> npt.NDArray[Any]:
    """An array in the format of numpy; a pickled one raises, and so does one that is cut."""
    file = io.BytesIO(data)
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(file)
    if version not in headers:
        raise ValueError(f"version {version} of the npy format. Must be 1.0 or 2.0")
    shape, by_column, dtype = headers[version](file)
    # From the bytes, since numpy's own reader first takes the memory that the header claims.
    flat = np.frombuffer(data, dtype, count=math.prod(shape), offset=file.tell())
    return flat.reshape(shape, order="F" if by_column else "C").copy()


def _split(name: str) -> tuple[str, str]:
    """The key of a sample and the field, of the name of a file."""
    folder, slash, base = name.rpartition("/")
    key, _, field = base.partition(".")
    return f"{folder}{slash}{key}", field
