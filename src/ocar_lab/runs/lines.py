"""The evaluations of a run from its lines, fast.

A long run has thousands of lines, and a report hundreds of runs. The lines that
:mod:`ocar_lab.runs.records` writes all look alike, so a file is taken apart by one regular expression
and its numbers are read by numpy; a file with anything else in it is read as JSON, line by line,
with the same outcome.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ocar.errors import RunError
from ocar_lab.runs.columns import Columns, Floats, Ints
from ocar_lab.runs.records import EVALUATED, FINISHED, evaluations, parse_lines

_LINE = re.compile(
    rb'\{"event": "evaluated", "correct": \[([^]]*)\], "sizes": \[([^]]*)\]'
    rb', "index": ([^,]*), "task": ([^,]*), "seconds": ([^,]*), ("[^\n]*)\}\n'
)
_COUNTS = re.compile(rb"[0-9, ]*")
_NEWLINE = 10
_OF_NUMBERS = b"0123456789.+-"  # and e, which names have too
_OWN = ("index", "task", "seconds")
_OTHER = ("event", "correct", "sizes")


def read_columns(data: bytes, path: Path) -> tuple[Columns, Mapping[str, Any] | None]:
    """The evaluations of a file that may have been cut anywhere, and its last line's result.

    Args:
        data: Content of the file.
        path: Its name, for the message of an error.

    Returns:
        The evaluations, and the record of the result; None if the run is not finished.

    Raises:
        RunError: A line before the last is not a record, or one of an evaluation lacks something.
    """
    whole = data[: data.rfind(b"\n") + 1]
    last = whole[whole.rfind(b"\n", 0, -1) + 1 :]
    result = _result(last)
    found = _LINE.findall(whole)
    lines = np.count_nonzero(np.frombuffer(whole, dtype=np.uint8) == _NEWLINE)
    if found and len(found) + (result is not None) == lines:
        columns = _fast(found, path)
        if columns is not None:
            return columns, result
    records = parse_lines(data, path)
    finished = bool(records) and records[-1]["event"] == FINISHED
    return _slow(records, path), records[-1] if finished else None


def _result(line: bytes) -> Mapping[str, Any] | None:
    if not line.startswith(b'{"event": "finished"'):
        return None
    try:
        result: Mapping[str, Any] = json.loads(line)
    except ValueError:
        return None
    return result


def _fast(found: Sequence[tuple[bytes, ...]], path: Path) -> Columns | None:
    """Columns from the groups of each line; None if they need a closer look."""
    counted, texts, index, task, seconds, rest = zip(*found, strict=True)
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    if not all(map(_COUNTS.fullmatch, places)):
        return None
    kinds = tuple(tuple(json.loads(b"[%b]" % text)) for text in places)
    kind = np.fromiter(map(places.__getitem__, texts), np.int64, len(texts))
    lengths = np.array([len(sizes) for sizes in kinds], dtype=np.int64)[kind]
    own = [_numbers(b",".join(column), len(found)) for column in (index, task, seconds)]
    correct = _numbers(b",".join(filter(None, counted)), int(lengths.sum()))
    there = [numbers for numbers in own if numbers is not None]
    if correct is None or len(there) < len(own):
        return None
    return _columns(correct, lengths, kinds, kind, there, _Values(rest, path))


class _Values(Mapping[str, Floats]):
    """The numbers of lines like ``"seen": 10, "loss": 0.5``, by name; read when asked for.

    Args:
        lines: The lines.
        path: Name of the file, for the message of an error.
    """

    def __init__(self, lines: Sequence[bytes], path: Path) -> None:
        self._lines = b"\n".join(lines)
        self._path = path
        self._read: dict[str, Floats] = {}

    def __getitem__(self, name: str) -> Floats:
        if name not in self:
            raise KeyError(name)
        if name not in self._read:
            read = _column_of_all if self._alike else _column_of_some
            numbers = read(self._lines, name)
            self._read[name] = self._all[name] if numbers is None else numbers
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._alike if self._alike else _key(str(name)) in self._lines

    def __iter__(self) -> Iterator[str]:
        return iter(self._alike or self._all)

    def __len__(self) -> int:
        return len(self._alike or self._all)

    @cached_property
    def last(self) -> Mapping[str, Any]:
        """The last line alone, which costs little."""
        return self._loads(self._lines[self._lines.rfind(b"\n") + 1 :])

    @cached_property
    def _alike(self) -> tuple[str, ...]:
        """The names, if all lines have the same in the same order, and numbers alone."""
        names = tuple(self._loads(self._lines.split(b"\n", 1)[0]))
        if any(character in "".join(names) for character in _OF_NUMBERS.decode()):
            return ()
        outline = self._lines.translate(None, _OF_NUMBERS).replace(b": e", b": ")
        line = ", ".join(f'"{name}": ' for name in names).encode()
        count = outline.count(b"\n") + 1
        return names if outline == b"\n".join([line] * count) else ()

    @cached_property
    def _all(self) -> dict[str, Floats]:
        return _by_name([self._loads(line) for line in self._lines.split(b"\n")])

    def _loads(self, line: bytes) -> dict[str, Any]:
        try:
            values: dict[str, Any] = json.loads(b"{%b}" % line)
        except ValueError as error:
            raise RunError(f"{self._path} is damaged: a line is not JSON. {error}") from error
        return values


def _by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """Numbers by name, NaN where there is none."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([_number(row.get(name)) for row in rows]) for name in names}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _key(name: str) -> bytes:
    return b'"%b": ' % name.encode()


def _column_of_all(lines: bytes, name: str) -> Floats | None:
    """One number of lines like ``"seen": 10, "loss": 0.5`` that all have the same names."""
    found = re.findall(rb"%b([^,\n]*)" % re.escape(_key(name)), lines)
    return _numbers(b",".join(found), len(found))


def _column_of_some(lines: bytes, name: str) -> Floats | None:
    """The same of lines some of which have it; None if they need a closer look."""
    if b"{" in lines or b"[" in lines or b"\\" in lines:
        return None
    key = _key(name)
    found = re.findall(rb"%b([0-9.e+-]+)(?:, |$)" % re.escape(key), lines, re.M)
    numbers = _numbers(b",".join(found), len(found))
    rows = np.array([key in line for line in lines.split(b"\n")])
    if numbers is None or rows.sum() != len(found):
        return None
    column = np.full(len(rows), np.nan)
    column[rows] = numbers
    return column


def _numbers(text: bytes, count: int) -> Floats | None:
    """Numbers with commas between them; None if there are not that many."""
    if not count:
        return None if text else np.empty(0)
    whole = not any(mark in text for mark in b".eE")  # numpy reads these ten times as fast
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what numpy says of a text that it cannot read
        try:
            numbers = np.fromstring(text, dtype=np.int64 if whole else np.float64, sep=",")
        except (DeprecationWarning, ValueError):
            return None
    fine = len(numbers) == count and np.isfinite(numbers).all()
    return numbers.astype(np.float64) if fine else None


def _slow(records: Sequence[Mapping[str, Any]], path: Path) -> Columns:
    """Columns from any records."""
    rows = [record for record in records if record["event"] == EVALUATED]
    history = evaluations(rows)
    if any(len(event.sizes) != len(event.correct) for event in history):
        raise RunError(f"{path} is damaged: an evaluation has not one size for each count.")
    kinds = tuple(dict.fromkeys(event.sizes for event in history))
    places = {sizes: place for place, sizes in enumerate(kinds)}
    values = _by_name([{k: v for k, v in row.items() if k not in _OTHER} for row in rows])
    own = [values.pop(name, np.empty(0)) for name in _OWN]
    if any(np.isnan(column).any() for column in own):
        raise RunError(f"{path} is damaged: {', '.join(_OWN)} are not all numbers in a line.")
    return _columns(
        np.array([count for event in history for count in event.correct], dtype=np.float64),
        np.array([len(event.sizes) for event in history], dtype=np.int64),
        kinds,
        np.array([places[event.sizes] for event in history], dtype=np.int64),
        own,
        values,
    )


def _columns(
    numbers: Floats,
    lengths: Ints,
    kinds: tuple[tuple[int, ...], ...],
    kind: Ints,
    own: Sequence[Floats],
    values: Mapping[str, Floats],
) -> Columns:
    """Columns, from correct predictions one row after the other."""
    tasks = max(map(len, kinds), default=0)
    correct = np.zeros((len(kind), tasks), dtype=np.int32)
    correct[np.arange(tasks) < lengths[:, None]] = numbers
    index, task, seconds = own
    return Columns(
        index=index.astype(np.int64),
        task=task.astype(np.int64),
        seconds=seconds,
        correct=correct,
        kinds=kinds,
        kind=kind,
        values=values,
    )
