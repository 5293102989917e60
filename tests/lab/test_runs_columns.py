"""The fast way to read a run gives what the plain way gives, and refuses what it refuses."""

from __future__ import annotations

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
from ocar_lab.runs import lines
from ocar_lab.runs.columns import summary_of
from ocar_lab.runs.lines import read_columns
from ocar_lab.runs.records import (
    evaluation_record,
    evaluations,
    parse_lines,
    result_record,
    to_line,
)

PATH = Path("somewhere/metrics.jsonl")

names = st.sampled_from(["loss", "tau", "classes", "top5", "E", "a b", "x-y", "norm_ratio"])
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


@settings(max_examples=150)
@given(files())
def test_columns_are_what_json_says(data: bytes) -> None:
    records = parse_lines(data, PATH)
    columns, result = read_columns(data, PATH)
    assert columns.events() == evaluations(records)
    ended = bool(records) and records[-1]["event"] == "finished"
    assert result == (records[-1] if ended else None)
    rows = [record for record in records if record["event"] == "evaluated"]
    for name in {name for row in rows for name in row} - {"event", "sizes", *vars(columns)}:
        found = [None if math.isnan(v) else v for v in columns.values[name].tolist()]
        assert found == [row.get(name) for row in rows], name
        assert columns.value(name, -1) == rows[-1].get(name)


def test_lines_as_a_run_writes_them_are_read_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    events = history(np.random.default_rng(0), [3, 2])
    reported = [{"loss": 0.1, "tau": 1e-8}, {}, {"loss": 2.0, "tau": 1e20}, {}, {"loss": 1.0}]
    pairs = zip(events, reported, strict=True)
    data = b"".join(to_line(evaluation_record(*pair)) for pair in pairs)
    monkeypatch.setattr(lines, "parse_lines", None)
    monkeypatch.setattr(lines, "_by_name", None)
    columns, _ = read_columns(data, PATH)
    assert columns.events() == tuple(events)
    np.testing.assert_array_equal(columns.values["tau"], [1e-8, np.nan, 1e20, np.nan, np.nan])


def test_lines_that_are_all_alike_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    events = history(np.random.default_rng(0), [3, 2])
    losses = [0.5, 1e-7, 3.0, 2e20, 1.25]
    reported = [{"loss": loss, "tau": 10 * loss} for loss in losses]
    pairs = zip(events, reported, strict=True)
    data = b"".join(to_line(evaluation_record(*pair)) for pair in pairs)
    monkeypatch.setattr(lines, "_column_of_some", None)
    values = read_columns(data, PATH)[0].values
    assert list(values) == ["seen", "loss", "tau"]
    assert "los" not in values
    np.testing.assert_array_equal(values["loss"], losses)
    np.testing.assert_array_equal(values["seen"], [event.seen for event in events])


@pytest.mark.parametrize("probe", [None, 0.5])
def test_the_summary_is_that_of_the_events(probe: float | None) -> None:
    events = history(np.random.default_rng(1), [4, 1, 5, 3])
    test = Counts(correct=(1, 2, 3, 4), sizes=(5, 5, 5, 5))
    summary = summarize(events, test=test, seconds=events[-1].seconds, probe=probe)
    done = Finished(correct=test.correct, sizes=test.sizes, summary=summary, probe=probe)
    data = b"".join(to_line(evaluation_record(event, {})) for event in events)
    columns, result = read_columns(data + to_line(result_record(done)), PATH)
    assert summary_of(columns, result) == summary
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


@pytest.mark.parametrize("rubbish", [b"\0\0\0\0", b'"lo', b"}{", b"nothing", b"1.5.2"])
def test_a_damaged_line_is_an_error(rubbish: bytes) -> None:
    event = history(np.random.default_rng(3), [1])[0]
    line = to_line(evaluation_record(event, {"loss": 0.25}))
    data = line.replace(b"0.25", rubbish) + line
    with pytest.raises(RunError, match="damaged"):
        _ = read_columns(data, PATH)[0].values["loss"]


def test_counts_without_sizes_are_an_error() -> None:
    event = history(np.random.default_rng(3), [1])[0]
    record = {**evaluation_record(event, {}), "sizes": [3, 4]}
    with pytest.raises(RunError, match="not one size for each count"):
        read_columns(json.dumps(record).encode() + b"\n", PATH)
    with pytest.raises(RunError, match="'evaluated' cannot be read"):
        read_columns(b'{"event": "evaluated", "index": 0}\n', PATH)
