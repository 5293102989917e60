"""``metrics.jsonl``: one JSON line for each evaluation, and a last one for the result.

A line holds the fields of its event; an evaluation also holds what the learner last reported, such
as the loss and τ. The file only grows: a process killed inside a line leaves the lines before it
intact.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ocar.errors import RunError
from ocar.events import Evaluated, Finished
from ocar.files import encode
from ocar_lab.optional import needed
from ocar_lab.runs.columns import Columns

if TYPE_CHECKING:
    import polars as pl

Record = Mapping[str, Any]
"""One line: plain values by name, ``event`` among them."""

EVALUATED, FINISHED = "evaluated", "finished"

REQUIRED = ("correct", "sizes", "index", "task", "seconds")
"""What every evaluation has."""

NUMBERS = (
    *("seen", "online_correct", "l_p", "l_s", "evaluations"),
    *("loss", "classes", "tau", "replay_weight", "norm_ratio"),
)
"""Numbers that an evaluation may have besides, which :func:`read_columns` reads."""

DEEPEST = 1000
"""Brackets in one line; beyond about 5,000 nested ones polars overflows its stack."""


def evaluation_record(event: Evaluated, reported: Mapping[str, float]) -> dict[str, Any]:
    """The line of an evaluation, with what the learner reported of the last batch."""
    return {"event": EVALUATED, **_given(event), **reported}


def result_record(event: Finished, evaluations: int | None = None) -> dict[str, Any]:
    """The line of the result; it has the number of ``evaluations`` if some have no line."""
    count = {} if evaluations is None else {"evaluations": evaluations}
    return {"event": FINISHED, **_given(event), **count}


def _given(event: Evaluated | Finished) -> dict[str, Any]:
    """The fields of an event that were measured."""
    return {n: value for n, value in dataclasses.asdict(event).items() if value is not None}


def to_line(record: Record) -> bytes:
    """One line of JSON; numbers that are not finite become null, since JSON has none."""
    return encode(json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)) + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def parse_lines(data: bytes, path: Path) -> list[dict[str, Any]]:
    """Every record of a file that may have been cut anywhere; an incomplete last line is dropped.

    The path is for errors.

    Raises:
        RunError: A line before the last is not a record.
    """
    records: list[dict[str, Any]] = []
    lines = data.split(b"\n")[:-1]  # what follows the last line break is incomplete or empty
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise RunError(f"{path} is damaged: line {number} is not JSON. {error}") from error
        if not isinstance(record, dict) or "event" not in record:
            raise RunError(f"{path} is damaged: line {number} is no event.")
        records.append(record)
    return records


def evaluations(records: Sequence[Record]) -> tuple[Evaluated, ...]:
    """The evaluations among some records, in order.

    Raises:
        RunError: A field is missing.
    """
    names = [field.name for field in dataclasses.fields(Evaluated)]
    found = [record for record in records if record["event"] == EVALUATED]
    try:
        return tuple(Evaluated(**{n: _frozen(r[n]) for n in names if n in r}) for r in found)
    except TypeError as error:
        raise RunError(f"A line of {EVALUATED!r} cannot be read: {error}") from error


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def read_columns(data: bytes, path: Path) -> tuple[Columns, Record | None]:
    """The evaluations of a file that may have been cut anywhere, and its result.

    Polars reads the file at once. Where it refuses, the lines are read one by one: for the number
    of the damaged line, for a last line of rubbish, for NaN. Names outside ``NUMBERS`` are skipped.
    The path is for errors.

    Returns:
        The evaluations, and the record of the result; None if the run is not finished.

    Raises:
        RunError: A line before the last is not a record, or an evaluation is incomplete.
    """
    with needed("Reading runs", "polars", extra="cli"):
        import polars as pl
    lines = data.split(b"\n")[:-1]
    if any(line.count(b"[") + line.count(b"{") > DEEPEST for line in lines):
        raise RunError(f"{path} is damaged: a line has more than {DEEPEST} brackets.")
    counts = pl.List(pl.Int32)
    kinds = {"event": pl.String, "correct": counts, "sizes": counts, "index": pl.Int64}
    schema: Any = {**kinds, "task": pl.Int64, "seconds": pl.Float64}
    schema |= dict.fromkeys(NUMBERS, pl.Float64)
    try:
        table = pl.read_ndjson(data[: data.rfind(b"\n") + 1], schema=schema)
    except pl.exceptions.PolarsError:
        records = parse_lines(data, path)
        columns = {name: [record.get(name) for record in records] for name in schema}
        try:
            table = pl.DataFrame([pl.Series(n, v, schema[n]) for n, v in columns.items()])
        except (pl.exceptions.PolarsError, OverflowError, TypeError) as error:
            raise RunError(f"{path} is damaged: {error}") from error
        lines = lines[: len(records)]
    if table["event"].null_count():
        parse_lines(data, path)
    ended = bool(lines) and table["event"].last() == FINISHED
    evaluated = table.filter(pl.col("event") == EVALUATED)
    return _columns(evaluated, path), json.loads(lines[-1]) if ended else None


def _columns(table: pl.DataFrame, path: Path) -> Columns:
    missing = [name for name in REQUIRED if table[name].null_count()]
    if missing:
        raise RunError(f"{path} is damaged: an evaluation lacks {', '.join(missing)}.")
    lengths = table["correct"].list.len()
    if not lengths.equals(table["sizes"].list.len()):
        raise RunError(f"{path} is damaged: an evaluation has not one size for each count.")
    inside = np.arange(int(lengths.max() or 0)) < lengths.to_numpy()[:, None]  # type: ignore[arg-type]
    dense = []
    for name in ("correct", "sizes"):
        numbers = table[name].explode(empty_as_null=False)
        if numbers.null_count():
            raise RunError(f"{path} is damaged: {name} are not all numbers in a line.")
        counts = np.zeros(inside.shape, dtype=np.int32)
        counts[inside] = numbers.to_numpy()
        dense.append(counts)
    return Columns(
        **{name: table[name].to_numpy() for name in ("index", "task", "seconds")},
        correct=dense[0],
        sizes=dense[1],
        tasks=lengths.to_numpy().astype(np.int64),
        values={n: table[n].to_numpy() for n in NUMBERS if table[n].null_count() < len(table)},
    )
