"""The lines of ``metrics.jsonl``: events as JSON and back.

A line stands for one evaluation, or, the last one, for the result. The fields of the event come
first; an evaluation also carries what the learner last reported, such as the loss and τ. The
file only grows, so a process killed in the middle of a line leaves the lines before it whole.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ocar.errors import RunError
from ocar.events import Counts, Evaluated, Finished

T = TypeVar("T")

Record = Mapping[str, Any]
"""One line: plain values by name, ``event`` among them."""

EVALUATED, FINISHED = "evaluated", "finished"


def evaluation_record(event: Evaluated, reported: Mapping[str, float]) -> dict[str, Any]:
    """The line of an evaluation.

    Args:
        event: The evaluation.
        reported: What the learner said of the last batch it learned, such as ``loss``.
    """
    return {"event": EVALUATED, **_given(event), **reported}


def result_record(event: Finished, evaluations: int | None = None) -> dict[str, Any]:
    """The line of the result.

    Args:
        event: The result.
        evaluations: How many there were, where not each has a line.
    """
    count = {} if evaluations is None else {"evaluations": evaluations}
    return {"event": FINISHED, **_given(event), **count}


def _given(event: Evaluated | Finished) -> dict[str, Any]:
    """The fields of an event, without those that were not measured."""
    values = dataclasses.asdict(event)
    return {name: value for name, value in values.items() if value is not None}


def to_line(record: Record) -> bytes:
    """One line of JSON; a number that is not finite becomes null, as JSON has none."""
    text = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def parse_lines(data: bytes, path: Path) -> list[dict[str, Any]]:
    """The records of a file that may have been cut anywhere; a torn last line is left out.

    Args:
        data: Content of the file.
        path: Its name, for the message of an error.

    Raises:
        RunError: A line before the last is not a record.
    """
    records: list[dict[str, Any]] = []
    lines = data.split(b"\n")[:-1]  # what follows the last line break is torn, or nothing
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
    """The evaluations among some records, in order."""
    return tuple(_read(Evaluated, r) for r in records if r["event"] == EVALUATED)


def read_counts(record: Record) -> Counts:
    """What a record says of test data."""
    return _read(Counts, record)


def _read(cls: type[T], record: Record) -> T:
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    try:
        return cls(**{name: _frozen(record[name]) for name in names if name in record})
    except TypeError as error:
        raise RunError(f"A line of {record['event']!r} cannot be read: {error}") from error


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
