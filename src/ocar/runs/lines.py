"""The evaluations of a run from its lines, fast.

A long run has thousands of lines, and a report hundreds of runs. The lines that
:mod:`ocar.runs.records` writes all look alike, so most of a file is taken apart by one regular
expression and its numbers are read by numpy; whatever looks different is read as JSON, line by
line, with the same outcome.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocar.errors import RunError
from ocar.runs.columns import Columns, Floats, Ints
from ocar.runs.records import EVALUATED, FINISHED, evaluations, parse_lines

OWN = ("index", "task", "seconds", "seen")
"""Numbers that every evaluation has."""

_LINE = re.compile(
    rb'^\{"event": "evaluated", "correct": \[([0-9, ]*)\], "sizes": \[([0-9, ]*)\], (.*)\}$', re.M
)


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
    result = json.loads(last) if last.startswith(b'{"event": "finished"') else None
    found = _LINE.findall(whole)
    if len(found) + (result is not None) == whole.count(b"\n"):
        columns = _fast(found)
        if columns is not None:
            return columns, result
    records = parse_lines(data, path)
    finished = bool(records) and records[-1]["event"] == FINISHED
    return _slow(records, path), records[-1] if finished else None


def _fast(found: Sequence[tuple[bytes, bytes, bytes]]) -> Columns | None:
    """Columns from correct, sizes and rest of each line; None if they need a closer look."""
    texts = [sizes for _, sizes, _ in found]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    kinds = tuple(tuple(json.loads(b"[%b]" % text)) for text in places)
    kind = np.fromiter((places[text] for text in texts), np.int64, len(texts))
    lengths = np.array([len(sizes) for sizes in kinds], dtype=np.int64)[kind]
    counted = [correct for correct, _, _ in found]
    commas = np.fromiter((text.count(b",") for text in counted), np.int64, len(counted))
    if (commas != np.maximum(lengths - 1, 0)).any():
        return None
    numbers = _numbers(b",".join(text for text in counted if text), int(lengths.sum()))
    values = _values([rest for _, _, rest in found])
    if numbers is None or values is None:
        return None
    return _columns(numbers, lengths, kinds, kind, values)


def _values(lines: Sequence[bytes]) -> dict[str, Floats] | None:
    """The numbers of lines like ``"index": 0, "loss": 0.5``, by name; None if they are not."""
    parts = [line.split(b", ") for line in lines]
    widths = np.fromiter(map(len, parts), np.int64, len(parts))
    values: dict[str, Floats] = {}
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        for column in zip(*[parts[row] for row in rows], strict=True):
            name, colon, _ = column[0].partition(b": ")
            joined = b",".join(column)
            if not re.fullmatch(rb'"\w+"', name) or joined.count(name + colon) != len(rows):
                return None
            numbers = _numbers(joined.replace(name + colon, b""), len(rows))
            if numbers is None:
                return None
            into = values.setdefault(name.decode()[1:-1], np.full(len(lines), np.nan))
            into[rows] = numbers
    return values


def _numbers(text: bytes, count: int) -> Floats | None:
    """Numbers with commas between them; None if there are not that many."""
    if not count:
        return None if text else np.empty(0)
    whole = not re.search(rb"[.eE]", text)  # numpy reads these ten times as fast
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what numpy says of a text that it cannot read
        try:
            numbers = np.fromstring(text, dtype=np.int64 if whole else np.float64, sep=",")
        except (DeprecationWarning, ValueError):
            return None
    fine = len(numbers) == count and np.isfinite(numbers).all()
    return numbers.astype(np.float64) if fine else None


def _slow(records: Sequence[Mapping[str, Any]], path: Path) -> Columns:
    rows = [record for record in records if record["event"] == EVALUATED]
    history = evaluations(rows)
    kinds = tuple(dict.fromkeys(event.sizes for event in history))
    places = {sizes: place for place, sizes in enumerate(kinds)}
    lengths = np.array([len(event.correct) for event in history], dtype=np.int64)
    if any(len(event.sizes) != length for event, length in zip(history, lengths, strict=True)):
        raise RunError(f"{path} is damaged: an evaluation counts more tasks than it has sizes of.")
    names = dict.fromkeys([*OWN, *(name for row in rows for name in row)])
    values = {
        name: np.array([_number(row.get(name, math.nan)) for row in rows])
        for name in names
        if name not in ("event", "correct", "sizes")
    }
    numbers = np.array([count for event in history for count in event.correct], dtype=np.float64)
    kind = np.array([places[event.sizes] for event in history], dtype=np.int64)
    columns = _columns(numbers, lengths, kinds, kind, values)
    if columns is None:
        raise RunError(f"{path} is damaged: an evaluation lacks one of {', '.join(OWN[:3])}.")
    return columns


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _columns(
    numbers: Floats,
    lengths: Ints,
    kinds: tuple[tuple[int, ...], ...],
    kind: Ints,
    values: Mapping[str, Floats],
) -> Columns | None:
    """Columns, from correct predictions row after row; None if an evaluation lacks something."""
    own = {name: values.get(name, np.full(len(kind), np.nan)) for name in OWN}
    if any(np.isnan(own[name]).any() for name in OWN[:3]):
        return None
    tasks = max(map(len, kinds), default=0)
    correct = np.zeros((len(kind), tasks), dtype=np.int32)
    correct[np.arange(tasks) < lengths[:, None]] = numbers
    return Columns(
        index=own["index"].astype(np.int64),
        task=own["task"].astype(np.int64),
        seconds=own["seconds"],
        seen=np.nan_to_num(own["seen"]).astype(np.int64),
        correct=correct,
        kinds=kinds,
        kind=kind,
        values={name: column for name, column in values.items() if name not in OWN},
    )
