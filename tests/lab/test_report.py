"""The curves of accuracy over time: numbers against plain loops, then a picture that is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stored_runs import small

import ocar_lab
from ocar.errors import InputError
from ocar.events import Evaluated
from ocar_lab.report.curves import STEPS, accuracy_curves, curve, draw_accuracy, times_in_tasks


def evaluated(task: int, *correct: int) -> Evaluated:
    sizes = (10,) * len(correct)
    return Evaluated(correct=correct, sizes=sizes, index=0, task=task, seconds=0.0)


def test_time_is_counted_in_tasks() -> None:
    history = [evaluated(0, 1)] * 4 + [evaluated(1, 1, 1)] * 2
    np.testing.assert_allclose(times_in_tasks(history), [0.25, 0.5, 0.75, 1.0, 1.5, 2.0])


def test_a_moment_has_the_evaluation_made_last_of_each_seed() -> None:
    rng = np.random.default_rng(0)
    histories = [
        [evaluated(0, int(c)) for c in rng.integers(0, 11, 7)]
        + [evaluated(1, int(c), 5) for c in rng.integers(0, 11, 3 + seed)]
        for seed in range(3)
    ]
    found = curve("x", histories, lambda event: event.accuracies[0])
    assert len(found.times) == 2 * STEPS
    for time, mean, low, high in zip(*found[1:], strict=True):
        values = []
        for history in histories:
            before = [
                e.accuracies[0]
                for e, t in zip(history, times_in_tasks(history), strict=True)
                if t <= time + 1e-9
            ]
            values.append(before[-1] if before else history[0].accuracies[0])
        assert mean == pytest.approx(sum(values) / 3)
        assert (low, high) == (min(values), max(values))


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(InputError, match="nothing to draw of er"):
        curve("er", [[]], lambda event: event.accuracy)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    runs = [ocar_lab.run(small(seed=s, probe=False), out=tmp_path) for s in (0, 1)]
    everything, first = accuracy_curves(runs)
    assert [c.label for c in everything] == [c.label for c in first] == ["er"]
    assert everything[0].mean[-1] == pytest.approx(np.mean([r.history[-1].accuracy for r in runs]))
    draw_accuracy(runs, tmp_path / "deep" / "picture.png")
    assert (tmp_path / "deep" / "picture.png").read_bytes().startswith(b"\x89PNG")
