"""Lines of metrics: whatever a kill leaves of them is read as far as it is whole."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocar.errors import RunError
from ocar.events import Evaluated
from ocar_lab.runs.records import (
    evaluation_record,
    evaluations,
    parse_lines,
    to_line,
)

PATH = Path("somewhere/metrics.jsonl")

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
lines = st.lists(
    st.dictionaries(st.text(max_size=4), plain, max_size=4).map(lambda d: {"event": "x", **d}),
    max_size=6,
)


@st.composite
def histories(draw: st.DrawFn) -> list[Evaluated]:
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    history = []
    for task in range(len(sizes)):
        for _ in range(draw(st.integers(1, 4))):
            correct = tuple(draw(st.integers(0, n)) for n in sizes[: task + 1])
            history.append(
                Evaluated(
                    correct=correct,
                    sizes=tuple(sizes[: task + 1]),
                    index=len(history),
                    task=task,
                    seconds=draw(st.floats(0, 1e6)),
                    seen=10 * len(history) + 10,
                )
            )
    return history


@settings(max_examples=40)
@given(lines)
def test_records_come_back_from_their_lines(records: list[dict[str, object]]) -> None:
    data = b"".join(map(to_line, records))
    assert parse_lines(data, PATH) == records
    assert data.count(b"\n") == len(records)


@settings(max_examples=40)
@given(lines, st.data())
def test_a_file_cut_anywhere_gives_the_lines_that_are_whole(
    records: list[dict[str, object]], data: st.DataObject
) -> None:
    whole = b"".join(map(to_line, records))
    cut = data.draw(st.integers(0, len(whole)))
    ends = [len(b"".join(map(to_line, records[: n + 1]))) for n in range(len(records))]
    assert parse_lines(whole[:cut], PATH) == records[: sum(end <= cut for end in ends)]


def test_a_last_line_of_rubbish_is_left_out() -> None:
    data = to_line({"event": "x"}) + b"\0\0\0\n"
    assert parse_lines(data, PATH) == [{"event": "x"}]


def test_rubbish_before_the_last_line_is_an_error_that_names_it() -> None:
    data = to_line({"event": "x"}) + b"\0\0\n" + to_line({"event": "x"})
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged: line 2 is not JSON"):
        parse_lines(data, PATH)
    with pytest.raises(RunError, match="line 1 is no event"):
        parse_lines(b"[1]\n", PATH)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_lines_are_json_whatever_the_numbers(number: float) -> None:
    line = to_line({"event": "x", "loss": number, "more": {"a": [number, 1.5]}})
    assert json.loads(line) == {"event": "x", "loss": None, "more": {"a": [None, 1.5]}}


@given(histories())
def test_evaluations_come_back_from_their_lines(history: list[Evaluated]) -> None:
    data = b"".join(to_line(evaluation_record(e, {"loss": 0.5, "tau": 1e-3})) for e in history)
    assert list(evaluations(parse_lines(data, PATH))) == history


def test_a_line_that_lacks_a_number_is_an_error() -> None:
    with pytest.raises(RunError, match="'evaluated' cannot be read"):
        evaluations([{"event": "evaluated", "index": 0}])
