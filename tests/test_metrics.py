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
    assert metrics.current_tasks(history).tolist() == [len(row) - 1 for row in rows]
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
    assert metrics.accuracy(rows[-1], sizes=sizes) == pytest.approx(
        brute_aaa(rows[-1:], sizes), rel=TOLERANCE, abs=TOLERANCE
    )


@settings(max_examples=100, deadline=None)
@given(histories())
def test_bounds(drawn: tuple[Rows, list[int]]) -> None:
    rows, sizes = drawn
    history = metrics.history_array(rows)
    assert -TOLERANCE <= metrics.average_anytime_accuracy(history, sizes=sizes) <= 1 + TOLERANCE
    # The worst case cannot be better than the plain mean over tasks at the end.
    assert metrics.worst_case_accuracy(history) <= metrics.accuracy(rows[-1]) + TOLERANCE


def test_worked_example() -> None:
    history = metrics.history_array([[0.5], [0.9], [0.2, 0.6], [0.4, 0.8]])
    assert metrics.anytime_accuracy(history, sizes=[10, 30]) == pytest.approx([0.5, 0.9, 0.5, 0.7])
    assert metrics.average_anytime_accuracy(history, sizes=[10, 30]) == pytest.approx(0.65)
    assert metrics.average_anytime_accuracy(history) == pytest.approx(0.6)
    assert metrics.worst_case_accuracy(history) == pytest.approx(0.8 / 2 + 0.5 * 0.2)
    assert metrics.first_task_forgetting(history) == pytest.approx(0.5)
    assert metrics.last_task_accuracy(history) == 0.8
    assert metrics.accuracy([0.4, 0.8], sizes=[10, 30]) == pytest.approx(0.7)


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
        metrics.accuracy([0.1, 0.2], sizes=[1, 0])
    with pytest.raises(InputError, match="Must be 2 positive numbers"):
        metrics.accuracy([0.1, 0.2], sizes=[1])
