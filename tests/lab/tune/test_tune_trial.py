"""A trial: the same numbers as a run's, no look at test data, and bad settings are no crash."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from stored_runs import small

import ocar_lab
from ocar.streams.indexed import IndexedStream
from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.executors.base import never
from ocar_lab.tune import Moved, TuneConfig
from ocar_lab.tune.trial import (
    LATE,
    PARTS,
    Failed,
    Finished,
    Scored,
    TrialMessage,
    TrialWork,
)


def scores(messages: list[TrialMessage]) -> dict[int, float]:
    """By batches learned."""
    scored = [m for m in messages if isinstance(m, Scored)]
    assert len({m.batches for m in scored}) == len(scored)
    return {m.batches: m.value for m in scored}


def tasks(messages: list[TrialMessage]) -> dict[int, int]:
    """How many scores there are of each task."""
    return dict(Counter(m.task for m in messages if isinstance(m, Scored)))


@pytest.mark.parametrize("method", ["er", "gdumb"])
def test_scores_are_the_accuracies_that_a_run_has_after_these_batches(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"epochs": 2} if method == "gdumb" else {}
    config = TuneConfig(
        benchmark="split-digits", method=method, tasks=2, threads=1, device="cpu", settings=settings
    )
    trial = config.run_config({"lr": 0.05})
    stored = ocar_lab.run(
        small(method=method, settings={"lr": 0.05, **settings}, probe=False), out=tmp_path
    )
    run = {event.index + 1: event.accuracy for event in stored.history}
    ends = {event.task: event.index + 1 for event in stored.history}  # the last one of each

    def refuse(stream: IndexedStream, task: int) -> None:
        raise AssertionError("a search must not look at test data")

    monkeypatch.setattr(IndexedStream, "test", refuse)
    messages = list(TrialWork(config=trial)(never))
    found = scores(messages)
    assert found == {batches: run[batches] for batches in found}
    assert max(found) == ends[1]
    if method == "gdumb":  # it trains for each evaluation, so there are none but after tasks
        assert sorted(found) == sorted(ends.values())
    else:
        mean = ends[1] / 2
        assert tasks(messages) == {0: 1, 1: 2}
        for start, score in zip((0, ends[0]), sorted(found), strict=False):
            assert LATE * mean <= score - start < (LATE + 2 / PARTS) * mean
    assert isinstance(messages[0], Moved)
    assert messages[-1] == Finished()


def test_the_score_of_regression_is_the_sum_of_both_losses(tmp_path: Path) -> None:
    config = TuneConfig(benchmark="convex", method="er", tasks=2, threads=1, device="cpu")
    run = RunConfig(
        benchmark="convex", method="er", settings={"lr": 0.01}, max_tasks=2, threads=1, device="cpu"
    )
    summary = ocar_lab.run(run, out=tmp_path).summary
    assert summary is not None
    assert summary.l_p is not None
    assert summary.l_s is not None
    messages = list(TrialWork(config=config.run_config({"lr": 0.01}))(never))
    found = scores(messages)
    assert tasks(messages) == {0: 1, 1: 2}
    assert found[max(found)] == pytest.approx(summary.l_p + summary.l_s, rel=1e-12)
    assert config.direction == "minimize"


def test_a_trial_that_diverges_has_failed_and_others_may_not() -> None:
    (*_, last) = TrialWork(
        config=small(settings={"lr": 1e30}, every="task", probe=False, guard=False)
    )(never)
    assert isinstance(last, Failed)
    assert last.reason == "settings"
    assert "diverged" in last.error


def test_without_data_no_trial_would_work(tmp_path: Path) -> None:
    config = RunConfig(benchmark="split-mnist", method="er", data_root=tmp_path, device="cpu")
    (last,) = TrialWork(config=config)(never)
    assert isinstance(last, Failed)
    assert last.reason == "setup"


def test_a_trial_stops_when_it_is_asked() -> None:
    messages = list(TrialWork(config=small(every="task", probe=False))(lambda: True))
    assert {type(message) for message in messages} == {Moved}
