"""The numbers of a report against plain loops over the evaluations."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_files import kept
from made_runs import history, write_run

from ocar.events import Evaluated
from ocar_lab.report.figures import milliseconds, timed
from ocar_lab.report.sections import make_report, plain
from ocar_lab.runs import Run
from ocar_lab.runs.timeline import (
    band,
    per_stretch,
    task_lengths,
    thin,
    times_in_tasks,
)


def report(runs: list[Run]) -> dict[str, object]:
    return plain(make_report(runs, title="t", created="now"))


def figures(runs: list[Run], section: int = 0) -> dict[str, object]:
    return {f.key: f for f in make_report(runs, title="", created="").sections[section].figures}


def test_time_is_counted_in_tasks_whatever_is_evaluated(tmp_path: Path) -> None:
    events = history(np.random.default_rng(0), [4, 5, 2], every=2)
    run = write_run(tmp_path, events)
    #          batches 1..4       5..9              10, 11
    expected = [2 / 4, 4 / 4, 1 + 2 / 5, 1 + 4 / 5, 2.0, 2 + 1 / 2, 3.0]
    np.testing.assert_allclose(times_in_tasks(run.columns), expected)


def test_a_task_that_goes_on_is_as_long_as_that_of_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = write_run(tmp_path, history(rng, [4, 8]), seed=0)
    going = write_run(tmp_path, history(rng, [4, 2]), seed=1, finished=False)
    assert task_lengths([whole, going]) == {0: 4, 1: 8}
    (runs,), tasks = timed([[whole, going]])
    assert tasks == 2
    np.testing.assert_allclose(runs[1].times, [0.25, 0.5, 0.75, 1.0, 1.125, 1.25])
    alone = times_in_tasks(going.columns, finished=False, lengths=task_lengths([going]))
    np.testing.assert_allclose(alone[-2:], [1.25, 1.5])


def test_all_tasks_in_one_are_spread_over_as_many(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    split = write_run(tmp_path, history(rng, [2, 2]))
    mixed = write_run(tmp_path, history(rng, [4]), label="er-iid", iid=True)
    methods, tasks = timed([[split], [mixed]])
    assert tasks == 2
    np.testing.assert_allclose(methods[1][0].times, [0.5, 1, 1.5, 2])


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.floats(0, 5) | st.just(math.nan), min_size=1, max_size=9), max_size=4)
    .filter(bool)
    .map(lambda rows: [np.array(row) for row in rows]),
    st.integers(1, 4),
)
def test_a_band_is_mean_and_deviation_of_what_was_measured_last(
    values: list[np.ndarray], step: int
) -> None:
    times = [np.arange(1, len(v) + 1) / (step + n) for n, v in enumerate(values)]
    found = band(times, values)
    assert found.times[-1] == max(t[-1] for t in times)
    for place, moment in enumerate(found.times):
        last = []
        for own, numbers in zip(times, values, strict=True):
            before = [v for t, v in zip(own, numbers, strict=True) if t <= moment + 1e-9 and v == v]
            if before and moment <= own[-1] + 1e-9:
                last.append(before[-1])
        assert found.count[place] == len(last)
        if last:
            assert found.mean[place] == pytest.approx(statistics.fmean(last))
        else:
            assert math.isnan(found.mean[place])
        if len(last) > 1:
            assert found.std[place] == pytest.approx(statistics.stdev(last), abs=1e-12)
        else:
            assert math.isnan(found.std[place])


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(4, 80),
    st.integers(0, 9),
    st.booleans(),
)
def test_thinning_is_bounded_and_keeps_what_falls_at_a_boundary(
    lengths: list[int], most: int, seed: int, gaps: bool
) -> None:
    rng = np.random.default_rng(seed)
    times = np.concatenate([task + np.arange(1, n + 1) / n for task, n in enumerate(lengths)])
    values = rng.normal(size=len(times))
    if gaps:
        values[rng.random(len(times)) < 0.3] = np.nan
    kept = thin(times, values, most)
    there = np.flatnonzero(~np.isnan(values))
    assert (np.diff(kept) > 0).all()
    assert set(kept) <= set(there)
    assert len(kept) <= max(most, 4 * len(lengths))
    if len(there) <= most:
        assert list(kept) == list(there)
    ends = np.cumsum(lengths)
    for begin, end in zip([0, *ends], ends, strict=False):
        own = [i for i in there if begin <= i < end]
        if own:
            lowest, highest = min(own, key=lambda i: values[i]), max(own, key=lambda i: values[i])
            assert {own[0], own[-1], lowest, highest} <= set(kept)


def test_stretches_have_mean_and_median() -> None:
    rng = np.random.default_rng(0)
    times = np.concatenate([np.arange(1, 8) / 7, 1 + np.arange(1, 12) / 11])
    values = np.where(rng.random(len(times)) < 0.2, np.nan, rng.normal(size=len(times)))
    medians = per_stretch(times, values, each=4, count=8, how="median")
    means = per_stretch(times, values, each=4, count=8, how="mean")
    for stretch in range(8):
        low, high = stretch / 4, (stretch + 1) / 4
        own = [v for t, v in zip(times, values, strict=True) if low < t <= high and v == v]
        expected = [statistics.median(own), statistics.fmean(own)] if own else [math.nan] * 2
        np.testing.assert_allclose([medians[stretch], means[stretch]], expected)


def test_accuracy_lines_are_those_of_the_events(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = [write_run(tmp_path, history(rng, [3, 4]), seed=s) for s in range(3)]
    choices = figures(runs)["accuracy"].choices  # type: ignore[attr-defined]
    assert [choice.title for choice in choices] == ["All tasks so far", "Task 1", "Task 2"]
    for task, choice in zip((None, 0, 1), choices, strict=True):
        (line,) = choice.lines
        place = 0
        for events in zip(*(run.history for run in runs), strict=True):
            if task is not None and events[0].task < task:
                continue
            numbers = [100 * (e.accuracy if task is None else e.accuracies[task]) for e in events]
            assert line.mean[place] == pytest.approx(statistics.fmean(numbers), abs=0.01)
            assert line.std[place] == pytest.approx(statistics.stdev(numbers), abs=0.01)
            assert line.seeds[place] == 3
            place += 1
        assert place == len(line.x)


def test_the_gap_is_the_change_since_the_last_evaluation_before(tmp_path: Path) -> None:
    run = write_run(tmp_path, history(np.random.default_rng(0), [3, 5, 4]))
    drawn = figures([run])
    (line,) = drawn["gap"].choices[0].lines  # type: ignore[attr-defined]
    assert line.x == (-2, -1, 0, 1, 2, 3, 4)
    events = run.history
    for offset, mean in zip(line.x, line.mean, strict=True):
        changes = []
        for task, first in ((1, 3), (2, 8)):
            now, before = events[first - 1 + int(offset)], events[first - 1]
            parts = [sum(e.correct[:task]) / sum(e.sizes[:task]) for e in (now, before)]
            changes.append(100 * (parts[0] - parts[1]))
        assert mean == pytest.approx(statistics.fmean(changes), abs=0.01)
    (drops,) = drawn["drop"].choices[0].lines  # type: ignore[attr-defined]
    assert run.summary is not None
    assert run.summary.stability_gap is not None
    assert drops.x == (2, 3)
    assert statistics.fmean(drops.mean) == pytest.approx(100 * run.summary.stability_gap, abs=0.01)


def test_a_run_that_goes_on_counts_only_boundaries_it_is_past(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run = write_run(tmp_path, history(rng, [5, 5, 1]), finished=False)
    section = make_report([run], title="", created="").sections[0]
    assert "Not finished: 1 of 1 runs (1 stopped)" in section.warnings[0]
    drawn = {figure.key: figure for figure in section.figures}
    assert drawn["gap"].choices[0].lines[0].x[-1] == 5
    assert drawn["drop"].choices[0].lines[0].x == (2,)


def test_the_heat_map_is_the_mean_of_each_stretch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = [write_run(tmp_path, history(rng, [360, 360]), seed=s) for s in range(2)]
    (heat,) = make_report(runs, title="", created="").sections[0].heats
    assert len(heat.rows) == 2
    assert heat.rows[1][:120] == (None,) * 120
    for task, row in enumerate(heat.rows):
        for stretch in range(120 * task, 240, 17):
            rows = range(3 * stretch, 3 * stretch + 3)
            own = [100 * run.history[i].accuracies[task] for run in runs for i in rows]
            assert row[stretch] == pytest.approx(statistics.fmean(own), abs=0.06)


def test_a_heat_map_of_few_evaluations_has_no_gaps(tmp_path: Path) -> None:
    run = write_run(tmp_path, history(np.random.default_rng(0), [28, 28]))
    (heat,) = make_report([run], title="", created="").sections[0].heats
    first, second = heat.rows
    known = [value for value in first if value is not None]
    assert None not in first[first.index(known[0]) :]
    assert set(known) == {round(100 * e.accuracies[0], 1) for e in run.history}
    assert second[:120] == (None,) * 120


def test_what_a_learner_reports_and_time_are_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    reported = [{"tau": 0.1, "norm_ratio": 2.0}, {}, {"tau": 0.3, "norm_ratio": 4.0}]
    run = write_run(tmp_path, history(rng, [3]), label="ocar", reported=reported)
    drawn = figures([run])
    assert drawn["tau"].choices[0].lines[0].mean == (0.1, 0.1, 0.3)  # type: ignore[attr-defined]
    assert drawn["norm_ratio"].choices[0].lines[0].mean == (2, 2, 4)  # type: ignore[attr-defined]
    assert "replay_weight" not in drawn
    seconds = [event.seconds for event in run.history]
    expected = [1000 * (b - a) for a, b in zip([0.0, *seconds], seconds, strict=False)]
    np.testing.assert_allclose(milliseconds(run.columns), expected)


def test_regression_has_losses(tmp_path: Path) -> None:
    events = [
        Evaluated(correct=(), sizes=(), index=i, task=i // 2, seconds=1.0, l_p=1.0 + i, l_s=2.0 * i)
        for i in range(4)
    ]
    drawn = figures([write_run(tmp_path, events, benchmark="convex")])
    l_p, l_s = drawn["loss"].choices  # type: ignore[attr-defined]
    assert (l_p.lines[0].mean, l_s.lines[0].mean) == ((1, 2, 3, 4), (0, 2, 4, 6))
    assert not {"accuracy", "gap", "drop"} & drawn.keys()


def test_kept_results_have_tables_and_say_that_nothing_is_drawn(tmp_path: Path) -> None:
    runs = kept(tmp_path, "split-cifar100", "er", {0: {"acc": 0.3}, 1: {"acc": 0.4}})
    (section,) = make_report(runs, title="", created="").sections
    assert section.tables[0].header == ("method", "seeds", "Acc", "Train s")
    assert section.tables[0].rows[0] == ("er", "2", "35.0 ± 7.1", "1.0 ± 0.0")
    assert section.tables[0].rows[1] == ("paper", "", "28.2 ± 1.2", "")
    assert section.tables[0].printed == (1,)
    assert "nothing to draw" in section.notes[0]


def test_every_benchmark_has_a_section(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = [write_run(tmp_path, history(rng, [2]), benchmark=b) for b in ("one", "two")]
    document = report(runs)
    assert [s["benchmark"] for s in document["sections"]] == ["one", "two"]  # type: ignore[attr-defined]
