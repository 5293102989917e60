"""Metrics against their definitions written as plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocar import metrics
from ocar.errors import InputError

Rows = list[list[float]]
TOLERANCE = 1e-12


@st.composite
def histories(draw: st.DrawFn) -> tuple[Rows, list[int]]:
    """Rows of accuracies of the tasks so far, with 1-4 evaluations a task, and task sizes."""
    tasks = draw(st.integers(1, 6))
    value = st.floats(0, 1, allow_subnormal=False)
    rows = [
        draw(st.lists(value, min_size=task + 1, max_size=task + 1))
        for task in range(tasks)
        for _ in range(draw(st.integers(1, 4)))
    ]
    return rows, draw(st.lists(st.integers(1, 200), min_size=tasks, max_size=tasks))


def brute_aaa(rows: Rows, sizes: list[int]) -> float:
    total = 0.0
    for row in rows:
        right = sum(a * n for a, n in zip(row, sizes, strict=False))
        total += right / sum(sizes[: len(row)])
    return total / len(rows)


def brute_wc(rows: Rows) -> float:
    k = len(rows[-1])
    if k == 1:
        return rows[-1][0]
    minima = []
    for i in range(k - 1):
        lowest = math.inf
        for row in rows:
            if len(row) > i + 1:  # a later task was current
                lowest = min(lowest, row[i])
        minima.append(lowest)
    return rows[-1][-1] / k + (1 - 1 / k) * sum(minima) / len(minima)


def brute_forgetting(rows: Rows) -> float:
    after_first = [row[0] for row in rows if len(row) == 1][-1]
    return after_first - rows[-1][0]


@settings(max_examples=300, deadline=None)
@given(histories())
def test_metrics_equal_brute_force(drawn: tuple[Rows, list[int]]) -> None:
    rows, sizes = drawn
    history = metrics.history_array(rows)
    assert history.shape == (len(rows), len(sizes))
    assert metrics.average_anytime_accuracy(history, sizes=sizes) == pytest.approx(
        brute_aaa(rows, sizes), rel=TOLERANCE, abs=TOLERANCE
    )
    assert metrics.average_anytime_accuracy(history) == pytest.approx(
        brute_aaa(rows, [1] * len(sizes)), rel=TOLERANCE, abs=TOLERANCE
    )
    assert metrics.worst_case_accuracy(history) == pytest.approx(
        brute_wc(rows), rel=TOLERANCE, abs=TOLERANCE
    )
    assert metrics.first_task_forgetting(history) == pytest.approx(
        brute_forgetting(rows), rel=TOLERANCE, abs=TOLERANCE
    )
    assert metrics.last_task_accuracy(history) == rows[-1][-1]


def brute_forgettings(rows: Rows) -> list[float]:
    """Of each task, its accuracy when it was last current less that at the end."""
    return [
        [row[task] for row in rows if len(row) == task + 1][-1] - rows[-1][task]
        for task in range(len(rows[-1]))
    ]


def brute_gaps(rows: Rows, sizes: list[int]) -> list[tuple[int, float, int, bool]]:
    """Task, drop, evaluations and whether it recovered, for each boundary."""

    def pooled(row: list[float], tasks: int) -> float:
        return sum(a * n for a, n in zip(row[:tasks], sizes, strict=False)) / sum(sizes[:tasks])

    gaps = []
    for task in range(1, len(rows[-1])):
        before = pooled([row for row in rows if len(row) == task][-1], task)
        during = [pooled(row, task) for row in rows if len(row) == task + 1]
        lowest = min(during)
        evaluations, recovered = 0, True
        if lowest < before:
            start = during.index(lowest)
            back = [n for n, value in enumerate(during) if n >= start and value >= before]
            recovered = bool(back)
            evaluations = back[0] + 1 if back else len(during)
        gaps.append((task, max(0.0, before - lowest), evaluations, recovered))
    return gaps


@settings(max_examples=300, deadline=None)
@given(histories())
def test_forgetting_equals_brute_force(drawn: tuple[Rows, list[int]]) -> None:
    rows, _ = drawn
    history = metrics.history_array(rows)
    want = brute_forgettings(rows)
    assert metrics.task_forgetting(history).tolist() == pytest.approx(want, abs=TOLERANCE)
    mean = metrics.mean_forgetting(history)
    if len(want) == 1:
        assert math.isnan(mean)
    else:
        assert mean == pytest.approx(sum(want[:-1]) / (len(want) - 1), abs=TOLERANCE)


@st.composite
def coarse_histories(draw: st.DrawFn) -> tuple[Rows, list[int]]:
    """As ``histories``, of few values and equal sizes, so that accuracies come back exactly."""
    tasks = draw(st.integers(1, 4))
    value = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
    rows = [
        draw(st.lists(value, min_size=task + 1, max_size=task + 1))
        for task in range(tasks)
        for _ in range(draw(st.integers(1, 6)))
    ]
    # Powers of two, whose means are exact: a rounding error must not decide what has recovered.
    sizes = [1, 1, 2, 4][:tasks]
    return rows, sizes


@settings(max_examples=500, deadline=None)
@given(coarse_histories())
def test_stability_gaps_equal_brute_force(drawn: tuple[Rows, list[int]]) -> None:
    rows, sizes = drawn
    history = metrics.history_array(rows)
    gaps = metrics.stability_gaps(history, sizes=sizes)
    want = brute_gaps(rows, sizes)
    assert [(g.task, g.evaluations, g.recovered) for g in gaps] == [
        (t, e, r) for t, _, e, r in want
    ]
    assert [gap.drop for gap in gaps] == pytest.approx([drop for _, drop, _, _ in want])
    if gaps:
        assert metrics.mean_gap(gaps) == pytest.approx(sum(g.drop for g in gaps) / len(gaps))
        evaluations = sum(g.evaluations for g in gaps) / len(gaps)
        assert metrics.mean_recovery(gaps) == pytest.approx(evaluations)
        share = sum(g.recovered for g in gaps) / len(gaps)
        assert metrics.share_recovered(gaps) == pytest.approx(share)
    else:
        assert math.isnan(metrics.mean_gap(gaps))
        assert math.isnan(metrics.mean_recovery(gaps))
        assert math.isnan(metrics.share_recovered(gaps))


def test_a_worked_gap() -> None:
    # Known to 0.8; falls to 0.3 and is back after five evaluations; then lost for good.
    rows = [[0.8], [0.6, 0.1], [0.3, 0.2], [0.5, 0.5], [0.7, 0.6], [0.9, 0.7], [0.4, 0.4, 0.1]]
    gaps = metrics.stability_gaps(metrics.history_array(rows))
    assert [gap._asdict() for gap in gaps] == [
        {"task": 1, "drop": pytest.approx(0.5), "evaluations": 5, "recovered": True},
        {"task": 2, "drop": pytest.approx(0.4), "evaluations": 1, "recovered": False},
    ]


def test_a_rounding_error_is_no_drop() -> None:
    # Three right in all, each time, which adds up to two different floats.
    for rows, sizes in (
        ([[0 / 10, 3 / 30], [3 / 10, 0 / 30, 0.0]], [10, 30, 10]),
        ([[2 / 11, 1 / 13], [3 / 11, 0 / 13, 0.0]], [11, 13, 10]),
        ([[3 / 15, 0 / 14], [2 / 15, 1 / 14, 0.0]], [15, 14, 10]),
    ):
        (gap,) = metrics.stability_gaps(metrics.history_array(rows), sizes=sizes)
        assert (gap.evaluations, gap.recovered) == (0, True)
        assert gap.drop == pytest.approx(0, abs=TOLERANCE)


@settings(max_examples=300, deadline=None)
@given(histories())
def test_running_values_equal_those_of_the_history_so_far(drawn: tuple[Rows, list[int]]) -> None:
    rows, sizes = drawn
    anytime, worst = metrics.AnytimeAccuracy(), metrics.WorstCaseAccuracy()
    forgetting, gap = metrics.Forgetting(), metrics.StabilityGap()
    assert math.isnan(anytime.compute())
    assert all(map(math.isnan, gap.compute()))
    assert math.isnan(worst.compute())
    for n, row in enumerate(rows):
        anytime.update(brute_aaa([row], sizes))
        worst.update(row)
        forgetting.update(row)
        history = metrics.history_array(rows[: n + 1])
        aaa = metrics.average_anytime_accuracy(history, sizes=sizes[: len(row)])
        assert anytime.compute() == pytest.approx(aaa, abs=TOLERANCE)
        want = metrics.worst_case_accuracy(history)
        assert worst.compute() == pytest.approx(want, abs=TOLERANCE)
        lost = metrics.task_forgetting(history).tolist()
        assert forgetting.compute() == pytest.approx(lost, abs=TOLERANCE)
        gap.update(row, sizes[: len(row)])
        gaps = metrics.stability_gaps(history, sizes=sizes[: len(row)])
        want = [f(gaps) for f in (metrics.mean_gap, metrics.mean_recovery, metrics.share_recovered)]
        assert gap.compute() == pytest.approx(want, abs=TOLERANCE, nan_ok=True)
    with pytest.raises(InputError, match="No task may be lost"):
        worst.update(row[:-1])


def test_a_task_between_two_evaluations_counts_from_the_next() -> None:
    history = metrics.history_array([[0.9], [0.5, 0.7, 0.2], [0.4, 0.6, 0.3]])
    assert metrics.task_forgetting(history) == pytest.approx([0.5, 0.1, 0.0])
    forgetting = metrics.Forgetting()
    for row in ([0.9], [0.5, 0.7, 0.2], [0.4, 0.6, 0.3]):
        forgetting.update(row)
    assert forgetting.compute() == pytest.approx([0.5, 0.1, 0.0])


@settings(max_examples=100, deadline=None)
@given(histories())
def test_bounds(drawn: tuple[Rows, list[int]]) -> None:
    rows, sizes = drawn
    history = metrics.history_array(rows)
    assert -TOLERANCE <= metrics.average_anytime_accuracy(history, sizes=sizes) <= 1 + TOLERANCE
    # The worst case cannot be better than the plain mean over tasks at the end.
    assert metrics.worst_case_accuracy(history) <= np.mean(rows[-1]) + TOLERANCE


def test_worked_example() -> None:
    history = metrics.history_array([[0.5], [0.9], [0.2, 0.6], [0.4, 0.8]])
    assert metrics.anytime_accuracy(history, sizes=[10, 30]) == pytest.approx([0.5, 0.9, 0.5, 0.7])
    assert metrics.average_anytime_accuracy(history, sizes=[10, 30]) == pytest.approx(0.65)
    assert metrics.average_anytime_accuracy(history) == pytest.approx(0.6)
    assert metrics.worst_case_accuracy(history) == pytest.approx(0.8 / 2 + 0.5 * 0.2)
    assert metrics.first_task_forgetting(history) == pytest.approx(0.5)
    assert metrics.last_task_accuracy(history) == 0.8


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (np.zeros((0, 2)), "not empty"),
        (np.zeros(3), "Must be"),
        ([[0.1, np.nan], [np.nan, 0.2]], "begun so far"),
        ([[0.1, 0.2], [0.1, np.nan]], "no task may be lost"),
        ([[np.nan, np.nan], [0.1, 0.2]], "begun so far"),
        ([[0.1, np.nan]], "2 tasks, 1 of which have begun"),
        ([[1.5]], r"Must be in 0\.\.1"),
    ],
)
def test_wrong_histories_are_refused(history: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metrics.worst_case_accuracy(np.asarray(history))


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="Must be 2 positive numbers"):
        metrics.anytime_accuracy([[0.1, 0.2]], sizes=[1, 0])
    with pytest.raises(InputError, match="Must be 2 positive numbers"):
        metrics.anytime_accuracy([[0.1, 0.2]], sizes=[1])
