"""Long streams: fewer and fewer evaluations are kept, and the metrics say what all of them say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stored_runs import assert_same_run, records, small

import ocar_lab
from ocar.errors import CheckpointError
from ocar.evaluate import Counts, Evaluated, History, summarize
from ocar.evaluate import history as kept_history
from ocar.evaluate.history import ALL, is_kept
from ocar.metrics import history_array
from ocar.metrics.validation import validation_metrics
from ocar_lab.experiment import Recorded, Started, run_events
from ocar_lab.experiment.many import as_messages
from ocar_lab.runs import Run, read_run

FEW = 16
TEST = Counts(correct=(3,), sizes=(4,))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first sixteen are all kept."""
    monkeypatch.setattr(kept_history, "ALL", FEW)


@st.composite
def runs(draw: st.DrawFn) -> list[Evaluated]:
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    lengths = draw(st.lists(st.integers(1, 12), min_size=len(sizes), max_size=len(sizes)))
    tasks = [task for task, length in enumerate(lengths) for _ in range(length)]
    return [
        Evaluated(
            correct=tuple(draw(st.integers(0, size)) for size in sizes[: task + 1]),
            sizes=tuple(sizes[: task + 1]),
            index=index,
            task=task,
            seconds=float(index),
            seen=10 * index,
        )
        for index, task in enumerate(tasks)
    ]


def evaluated(*correct: tuple[int, ...]) -> list[Evaluated]:
    """Evaluations on tasks of 4, 6, 1 and 1 samples."""
    return [
        Evaluated(
            correct=counts,
            sizes=(4, 6, 1, 1)[: len(counts)],
            index=index,
            task=len(counts) - 1,
            seconds=float(index),
            seen=10 * index,
        )
        for index, counts in enumerate(correct)
    ]


AS_LOW_TWICE = evaluated((0,), (0, 2), (1, 0, 0), (0, 2, 0), (0, 1, 0), (0, 0, 0, 0))
"""One correct of ten, of the one task or of the other: it fell once, and was back at once."""


@settings(deadline=None)
@given(events=runs(), cut=st.integers(0, 40))
@example(events=AS_LOW_TWICE, cut=0)
def test_the_sums_say_what_all_evaluations_say(events: list[Evaluated], cut: int) -> None:
    array = history_array([event.accuracies for event in events])
    whole = validation_metrics(array, sizes=events[-1].sizes)
    first = History(events[:cut])
    if 0 < cut < len(events):  # through a file, in the middle
        first = History.restored(json.loads(json.dumps(first.state())))
    for event in events[len(events[:cut]) :]:
        first.add(event)
    got = dataclasses.asdict(summarize(first, test=TEST, seconds=1.0))
    assert {name: got[name] for name in whole} == pytest.approx(whole, abs=1e-12)
    assert first.count == len(events)


def test_what_is_kept_grows_with_the_logarithm() -> None:
    for doublings in range(8):
        kept = sum(map(is_kept, range(ALL << doublings)))
        assert kept == ALL + doublings * ALL // 2
    assert all(map(is_kept, range(ALL)))


@pytest.mark.parametrize("state", [{}, {"count": 1, "last": 3}, {"count": 1, "last": {"x": 1}}])
def test_a_state_that_is_none_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="not of a history"):
        History.restored(state)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return ocar_lab.run(small(probe=False), out=tmp_path_factory.mktemp("usual"))


def test_a_thinned_run_has_the_metrics_of_the_whole_one(
    tmp_path: Path, few: None, usual: Run
) -> None:
    """Interrupted or not; and its lines are some of those of the whole one."""
    config = small(probe=False)
    whole = ocar_lab.run(config, out=tmp_path / "whole")
    pieces, sessions = tmp_path / "pieces", 0
    part = None
    while part is None or part.summary is None:
        left = iter([False] * 9)
        part = ocar_lab.run(config, out=pieces, stop=lambda left=left: next(left, True))
        sessions += 1
    assert sessions > 3
    assert_same_run(whole.path, part.path)
    for run in (whole, part):
        assert len(run.columns) < len(usual.columns) == run.evaluated
        assert run.summary is not None
        assert usual.summary is not None
        for name, value in dataclasses.asdict(usual.summary).items():
            if not name.endswith("seconds"):
                assert getattr(run.summary, name) == pytest.approx(value, abs=1e-12), name
    lines = records(usual.path)[:-1]
    numbers = [n for n in range(len(lines)) if is_kept(n)]
    got = records(whole.path)[:-1]
    assert [{**lines[n], "evaluations": n + 1} for n in numbers[FEW:]] == got[FEW:]
    assert [lines[n] for n in numbers[:FEW]] == got[:FEW]


def test_a_run_that_goes_on_knows_its_mean_accuracy(tmp_path: Path, few: None, usual: Run) -> None:
    config = small(probe=False)
    left = iter([False] * 40)
    events = list(run_events(config, out=tmp_path, stop=lambda: next(left, True)))
    told = [event for event in events if isinstance(event, Recorded)]
    assert sum(event.kept for event in told) < len(told)
    past = [event.evaluated.accuracy for event in told]
    assert [e.accuracy for e in usual.history[: len(past)]] == past
    started = next(iter(run_events(config, out=tmp_path)))
    assert isinstance(started, Started)
    assert started.evaluated == len(past)
    (progress,) = as_messages(0, [started])
    assert progress.aaa == pytest.approx(sum(past) / len(past))  # type: ignore[union-attr]
    assert read_run(tmp_path / config.folder()).evaluated <= len(past)  # that has a line
