"""Columns read by polars equal what ``json`` reads line by line; damaged files are refused."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import history

from ocar.errors import RunError
from ocar.evaluate import summarize
from ocar.events import Counts, Evaluated, Finished
from ocar_lab.runs import records as module
from ocar_lab.runs.columns import summary_of
from ocar_lab.runs.records import (
    DEEPEST,
    NUMBERS,
    evaluation_record,
    evaluations,
    parse_lines,
    read_columns,
    result_record,
    to_line,
)

PATH = Path("somewhere/metrics.jsonl")

names = st.sampled_from(["loss", "tau", "classes", "norm_ratio", "top5", "a b", "x-y", "É"])
reports = st.dictionaries(names, st.floats(width=32) | st.integers(-5, 10**6), max_size=4)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Lines of a run, of classification or regression, perhaps cut."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    events = history(rng, lengths)
    if draw(st.booleans()):
        losses = {"correct": (), "sizes": (), "l_p": 0.5, "l_s": 1e-7}
        events = [Evaluated(**{**vars(event), **losses}) for event in events]
    if draw(st.booleans()):
        events = [Evaluated(**{**vars(event), "online_correct": 3}) for event in events]
    written = [to_line(evaluation_record(event, draw(reports))) for event in events]
    if draw(st.booleans()):
        written.append(to_line({"event": "finished", "correct": [1], "sizes": [2]}))
    data = b"".join(written)
    return data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data


@settings(max_examples=150, deadline=None)
@given(files())
def test_columns_are_what_json_says(data: bytes) -> None:
    records = parse_lines(data, PATH)
    columns, result = read_columns(data, PATH)
    assert columns.events() == evaluations(records)
    ended = bool(records) and records[-1]["event"] == "finished"
    assert result == (records[-1] if ended else None)
    rows = [record for record in records if record["event"] == "evaluated"]
    for name in NUMBERS:
        expected = [row.get(name) for row in rows]
        if any(number is not None for number in expected):
            found = [None if math.isnan(v) else v for v in columns.values[name].tolist()]
            assert found == expected, name
            assert columns.last(name) == rows[-1].get(name)
        else:
            assert name not in columns.values


def test_polars_reads_what_a_run_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    events = history(np.random.default_rng(0), [3, 2])
    reported = [{"loss": 0.1, "tau": 1e-8}, {}, {"loss": 2.0, "tau": 1e20}, {}, {"loss": 1.0}]
    pairs = zip(events, reported, strict=True)
    data = b"".join(to_line(evaluation_record(*pair)) for pair in pairs)
    monkeypatch.setattr(module, "parse_lines", None)  # the slow way
    columns, _ = read_columns(data, PATH)
    assert columns.events() == tuple(events)
    np.testing.assert_array_equal(columns.values["tau"], [1e-8, np.nan, 1e20, np.nan, np.nan])


@pytest.mark.parametrize("probe", [None, 0.5])
def test_the_summary_is_that_of_the_events(probe: float | None) -> None:
    events = history(np.random.default_rng(1), [4, 1, 5, 3])
    test = Counts(correct=(1, 2, 3, 4), sizes=(5, 5, 5, 5))
    summary = summarize(events, test=test, seconds=events[-1].seconds, probe=probe)
    done = Finished(correct=test.correct, sizes=test.sizes, summary=summary, probe=probe)
    data = b"".join(to_line(evaluation_record(event, {})) for event in events)
    columns, result = read_columns(data + to_line(result_record(done)), PATH)
    found = summary_of(columns, result)
    assert found is not None  # one is of running sums, the other of all evaluations
    assert dataclasses.asdict(found) == pytest.approx(dataclasses.asdict(summary), abs=1e-12)
    assert summary_of(columns, None) is None


def test_accuracies_are_those_of_the_events() -> None:
    events = history(np.random.default_rng(2), [2, 3, 2])
    data = b"".join(to_line(evaluation_record(event, {})) for event in events)
    columns, _ = read_columns(data, PATH)
    np.testing.assert_array_equal(columns.accuracy(), [event.accuracy for event in events])
    nan = math.nan
    for task in range(3):
        on = [e.accuracies[task] if task < len(e.sizes) else nan for e in events]
        up_to = [
            sum(e.correct[: task + 1]) / sum(e.sizes[: task + 1]) if task < len(e.sizes) else nan
            for e in events
        ]
        np.testing.assert_array_equal(columns.accuracy_on(task), on)
        np.testing.assert_array_equal(columns.accuracies()[:, task], on)
        np.testing.assert_array_equal(columns.accuracy_up_to(task, slice(1, 6)), up_to[1:6])


def line(**values: object) -> bytes:
    event = history(np.random.default_rng(3), [1])[0]
    return json.dumps({**evaluation_record(event, {"loss": 0.25}), **values}).encode() + b"\n"


@pytest.mark.parametrize(
    "rubbish", [b"\0\0\0\0", b'"lo', b"}{", b"nothing", b"1.5.2", b'"0.25"', b"[0.25]", b"{}"]
)
def test_a_damaged_line_is_an_error(rubbish: bytes) -> None:
    with pytest.raises(RunError, match="damaged"):
        read_columns(line().replace(b"0.25", rubbish) + line(), PATH)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sizes": [3, 4]}, "not one size for each count"),
        ({"index": None}, "lacks index"),
        ({"index": 0.5}, "damaged"),
        ({"index": 2**64}, "damaged"),
        ({"correct": [None]}, "correct are not all numbers"),
        ({"sizes": "many"}, "damaged"),
        ({"seconds": "1"}, "damaged"),
    ],
)
def test_a_damaged_evaluation_is_an_error(values: dict[str, object], message: str) -> None:
    with pytest.raises(RunError, match=message):
        read_columns(line(**values) + line(), PATH)


def test_foreign_names_and_nan_are_no_damage() -> None:
    columns, _ = read_columns(line(mine={"a": [1, "b"]}, loss=math.nan) + line(tau=1), PATH)
    np.testing.assert_array_equal(columns.values["loss"], [math.nan, 0.25])
    np.testing.assert_array_equal(columns.values["tau"], [math.nan, 1])
    assert "mine" not in columns.values


def test_a_last_line_of_rubbish_does_not_hide_the_result() -> None:
    result = to_line({"event": "finished", "correct": [1], "sizes": [2]})
    for rubbish in (b"", b'{"event": "eval', b"\0\0\n"):
        columns, found = read_columns(line() + result + rubbish, PATH)
        assert (len(columns), found) == (1, json.loads(result))


def test_deep_nesting_is_an_error_before_polars_overflows_its_stack() -> None:
    deep = b"[" * 100 * DEEPEST + b"]" * 100 * DEEPEST
    with pytest.raises(RunError, match="more than 1000 brackets"):
        read_columns(line() + line().replace(b"0.25", deep) + line(), PATH)
    with pytest.raises(RunError, match="damaged"):
        read_columns(line() + line().replace(b"0.25", b"[" * DEEPEST) + line(), PATH)
