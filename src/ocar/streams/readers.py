"""Batches from a data source, from any place on.

A reader yields pairs ``(x, y)``, each with the place after it: a few integers, small enough for any
checkpoint. Reading from a place yields the same batches again. An
:class:`~ocar.streams.iterable.IterableStream` takes readers as its tasks and stores their places.

:class:`LoaderReader` reads a ``torch.utils.data.DataLoader`` and :class:`TableReader` a data set of
Hugging Face; :mod:`ocar.streams.file_readers` reads files, :mod:`ocar.streams.messages` queues.
"""

from __future__ import annotations

import itertools
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Required, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from ocar.config import require
from ocar.errors import CheckpointError, ConfigError, DataError, InputError, OcarError
from ocar.structure import PADDING

Place = Mapping[str, int]
"""Where to go on reading."""

Record = Mapping[str, Any]
"""One sample: the fields of a row, by name."""

Field = str | Sequence[str] | Callable[[Record], Any]
"""One field; several, as a vector of numbers; or a function of a record."""

Fields = Field | Mapping[str, Field]
"""The sample in a record, or each of its parts."""


class RecordOptions(TypedDict, total=False):
    """The arguments of a :class:`RecordReader`, which readers of one kind of source pass on."""

    x: Required[Fields]
    y: Required[Field]
    classes: Sequence[str]
    batch_size: int


PAIR = "Must be a pair (x, y) of tensors or arrays, y of integer labels or floating-point targets."

CHUNK = 4096
"""Rows of a table that are read at a time."""


class Reader(ABC):
    """Batches ``(x, y)`` that can be read again and again, from any place on."""

    @abstractmethod
    def read(self, place: Place | None = None) -> Iterator[tuple[tuple[Any, Any], Place]]:
        """The batches from a place on, by default from the first, each with the place after it."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """All batches."""
        return (pair for pair, _ in self.read())


class RecordReader(Reader):
    """Batches of records, each with its fields by name.

    Args:
        x: The field that is the sample, such as an array; several fields, as a vector of float32;
            a function of a record; or a dictionary of these, for a model with several inputs.
        y: The field with the label, an integer or one of ``classes``; a list of fields, as the
            targets of a regression; or a function of a record.
        classes: Names of the labels 0, 1, 2, ..., all different; by default labels are integers.
        batch_size: Samples in a batch; the last may have fewer.
    """

    def __init__(
        self,
        *,
        x: Fields,
        y: Field,
        classes: Sequence[str] = (),
        batch_size: int = 10,
    ) -> None:
        require("batch_size", batch_size, batch_size >= 1, "at least 1")
        self.x, self.y, self.batch_size = x, y, batch_size
        self.classes = tuple(map(str, classes))
        different = len(set(self.classes)) == len(self.classes)
        require("classes", self.classes, different, "different names")
        self._labels = {name: label for label, name in enumerate(self.classes)}

    @abstractmethod
    def records(self, start: int) -> Iterator[Record]:
        """The records from a row on."""

    def named(self, start: int) -> Iterator[tuple[str, Record]]:
        """The records from a row on, each with the name that errors give it."""
        return ((f"Row {row}", one) for row, one in enumerate(self.records(start), start))

    def read(self, place: Place | None = None) -> Iterator[tuple[tuple[Any, Any], Place]]:
        """See :meth:`Reader.read`. The place is the number of the next row."""
        row = read_place(place, "row")
        # A sample is made at once: its file may be closed later.
        samples = ((self._sample(record, where), where) for where, record in self.named(row))
        while batch := list(itertools.islice(samples, self.batch_size)):
            pairs, names = zip(*batch, strict=True)
            row += len(batch)
            yield collate(pairs, f"{names[0]} to {names[-1]}: "), {"row": row}

    def _sample(self, record: Any, where: str) -> tuple[Any, Any]:
        if not isinstance(record, Mapping):
            kind = type(record).__name__
            raise DataError(f"{where} is a {kind}. Must be a dictionary of fields by name.")
        try:
            if isinstance(self.x, Mapping):
                x: Any = {name: _value(record, field) for name, field in self.x.items()}
            else:
                x = _value(record, self.x)
            return x, self._label(record)
        except _NoField as error:
            listed = ", ".join(map(str, record))
            raise DataError(f"{where} has no field {error}. It has {listed}.") from error
        except DataError as error:
            raise DataError(f"{where}: {error}") from error

    def _label(self, record: Record) -> Any:
        if not isinstance(self.y, str):
            return _value(record, self.y)
        given = _field(record, self.y)
        if self.classes and given is not None:
            if str(given) not in self._labels:
                raise _wrong(self.y, given, f"one of {', '.join(self.classes)}")
            return self._labels[str(given)]
        try:
            label = int(given)
            whole = isinstance(given, str) or bool(label == given)
        except (TypeError, ValueError, OverflowError):
            whole = False
        if not whole or not 0 <= label < 2**63:
            raise _wrong(
                self.y,
                given,
                "an integer from 0 to 2**63 - 1. Give classes=[...] for names, and "
                f"y=[{self.y!r}] for a regression",
            )
        return label


class TableReader(RecordReader):
    """Rows of a table in memory or in the cache of Hugging Face's ``datasets``.

    Args:
        table: A ``datasets.Dataset`` or a list of dictionaries: whatever has a length, and of which
            a slice is a list of records or a dictionary of columns. Or a
            ``datasets.IterableDataset``, which has ``skip`` instead.

    The other arguments are those of :class:`RecordReader`.
    """

    def __init__(self, table: Any, **record: Unpack[RecordOptions]) -> None:
        super().__init__(**record)
        sliced = hasattr(table, "__len__") and not isinstance(table, Mapping)
        if not sliced and not hasattr(table, "skip"):
            raise ConfigError(
                f"Invalid table {type(table).__name__}. Must have a length and slices, or skip(n) "
                "as an IterableDataset of Hugging Face."
            )
        self.table = table

    def __length_hint__(self) -> int:
        """Batches in all; 0 if the table has no length."""
        return -(-len(self.table) // self.batch_size) if hasattr(self.table, "__len__") else 0

    def records(self, start: int) -> Iterator[Record]:
        """The rows from one on."""
        if not hasattr(self.table, "__len__"):
            yield from self.table.skip(start)
            return
        for first in range(start, len(self.table), CHUNK):
            part = self.table[first : first + CHUNK]
            if isinstance(part, Mapping):
                for values in zip(*part.values(), strict=True):
                    yield dict(zip(part, values, strict=True))
            else:
                yield from part


class LoaderReader(Reader):
    """The batches of a ``DataLoader``, in the same order in every pass.

    If the loader has a data set with an index, samples before the place are not loaded. A random
    order follows from the seed. What a data set draws itself is not under the seed.

    Args:
        loader: Gives pairs ``(x, y)``.
        seed: Seed of the loader's random order.
    """

    def __init__(self, loader: DataLoader[Any], *, seed: int = 0) -> None:
        if not isinstance(loader, DataLoader):
            raise ConfigError(
                f"Invalid loader {type(loader).__name__}. Must be a torch.utils.data.DataLoader. "
                "IterableStream takes a list of batches itself."
            )
        self.loader = loader
        self.seed = seed

    def __length_hint__(self) -> int:
        """Batches in all, 0 if the loader does not know."""
        try:
            return len(self.loader)
        except TypeError:
            return 0

    def read(self, place: Place | None = None) -> Iterator[tuple[tuple[Any, Any], Place]]:
        """See :meth:`Reader.read`. The place is the number of the next batch."""
        start = read_place(place, "batch")
        loader = self.loader
        if isinstance(loader.dataset, IterableDataset):
            pairs: Iterator[Any] = itertools.islice(loader, start, None)
        else:
            order = self._order(loader)[start:]
            whole = loader.batch_sampler is None  # an item of the data set is a batch
            rest = DataLoader(
                loader.dataset,
                **({"batch_size": None, "sampler": order} if whole else {"batch_sampler": order}),
                collate_fn=loader.collate_fn,
                num_workers=loader.num_workers,
                pin_memory=loader.pin_memory,
                worker_init_fn=loader.worker_init_fn,
                generator=torch.Generator().manual_seed(self.seed),
            )
            pairs = iter(rest)
        for batch, pair in enumerate(pairs, start=start):
            yield as_pair(pair, f"Batch {batch} of the loader"), {"batch": batch + 1}

    def _order(self, loader: DataLoader[Any]) -> list[Any]:
        """The index or the indices of each batch; no generator is changed."""
        own = loader.generator
        before = None if own is None else own.get_state()
        try:
            with torch.random.fork_rng(devices=[]):  # what a sampler without a generator uses
                torch.manual_seed(self.seed)
                if own is not None:
                    own.manual_seed(self.seed)
                if loader.batch_sampler is None:
                    return list(loader.sampler)
                return [list(batch) for batch in loader.batch_sampler]
        finally:
            if own is not None and before is not None:
                own.set_state(before)


def as_pair(given: Any, where: str) -> tuple[Any, Any]:
    """The two parts of a batch or a sample.

    Raises:
        InputError: It is something else, such as one tensor, also of length 2.
    """
    listed = isinstance(given, (tuple, list))
    if not listed or len(given) != 2:
        parts = f" of {len(given)} parts" if listed else ""
        raise InputError(f"{where} is a {type(given).__name__}{parts}. {PAIR}")
    return given[0], given[1]


def collate(samples: Sequence[tuple[Any, Any]], where: str = "") -> tuple[Any, Any]:
    """Samples as one batch; ``where`` stands before an error.

    Raises:
        InputError: They have different shapes.
    """
    try:
        x, y = default_collate(list(samples))
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{where}Samples cannot be put in a batch: {reason}. {PADDING}") from error
    return x, y


def as_array(value: Any) -> Any:
    """Nested lists of numbers as an array: a batch takes a list for the parts of a sample.

    So is each part of a tuple or a dictionary.
    """
    if isinstance(value, Mapping):
        return {name: as_array(part) for name, part in value.items()}
    if type(value) is tuple:
        return tuple(map(as_array, value))
    if _is_plain(value):
        with suppress(ValueError):  # lists of different lengths, which collate names
            return _narrow(np.array(value))
    return value


def _is_plain(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, (int, float)) or _is_plain(each) for each in value
    )


def read_place(place: Place | None, name: str) -> int:
    """The number in a place that has one."""
    if place is None:
        return 0
    if set(place) != {name} or not isinstance(place[name], int) or place[name] < 0:
        raise CheckpointError(f"Invalid place {dict(place)}. Must be {name}, 0 or more.")
    return place[name]


class _NoField(Exception):
    """A record lacks a field; its text is the name."""


def _field(record: Record, name: str) -> Any:
    try:
        return record[name]
    except KeyError as error:
        raise _NoField(repr(name)) from error


def _wrong(name: str, given: Any, allowed: str) -> DataError:
    empty = given is None or (isinstance(given, str) and not given)
    shown = "is empty" if empty else f"is {reprlib.repr(given)}"
    return DataError(f"field {name!r} {shown}. Must be {allowed}.")


def _called(function: Callable[[Record], Any], record: Record) -> Any:
    """What a user's function of a record returns."""
    try:
        value = function(record)
    except (OcarError, KeyError) as error:
        if isinstance(error, KeyError) and error.args and error.args[0] not in record:
            raise _NoField(repr(error.args[0])) from error
        raise
    except Exception as error:
        kind = type(error).__name__
        raise DataError(f"a function of the record raised {kind}: {error}") from error
    if value is None or isinstance(value, (str, bytes)):
        raise DataError(
            f"a function of the record returned {reprlib.repr(value)}. Must be a number, an array "
            "or a tensor."
        )
    return as_array(value)


def _number(record: Record, name: str) -> float:
    given = _field(record, name)
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise _wrong(name, given, "a number") from error


def _value(record: Record, field: Field) -> Any:
    """A field of a record as an array, or several as a vector."""
    if callable(field):
        return _called(field, record)
    if not isinstance(field, str):
        return np.array([_number(record, name) for name in field], dtype=np.float32)
    value = _field(record, field)
    if isinstance(value, torch.Tensor):
        return value
    if value is None or isinstance(value, (str, int, float, Decimal)):  # of one number a vector too
        return np.array([_number(record, field)], dtype=np.float32)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "buif":
        raise _wrong(field, value, f"numbers, without empty ones. {PADDING.rstrip('.')}")
    return array if isinstance(value, np.ndarray) else _narrow(array)


def _narrow(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers of Python, which has one type of float, as float32."""
    return array.astype(np.float32) if array.dtype == np.float64 else array
