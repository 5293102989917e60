"""The curves of accuracy over time: numbers against plain loops, then a picture that is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_runs import history, write_run
from stored_runs import small

import ocar_lab
from ocar.errors import InputError
from ocar_lab.report.curves import accuracy_curves, curve, draw_accuracy
from ocar_lab.runs.timeline import STEPS, times_in_tasks


def test_each_time_has_the_last_evaluation_of_each_seed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = [write_run(tmp_path, history(rng, [7, 3 + seed]), seed=seed) for seed in range(3)]
    found = curve("x", [run.columns for run in runs], lambda columns: columns.accuracy_on(0))
    assert len(found.times) == 2 * STEPS
    for time, mean, low, high in zip(*found[1:], strict=True):
        values = []
        for run in runs:
            times = times_in_tasks(run.columns)
            before = [
                event.accuracies[0]
                for event, at in zip(run.history, times, strict=True)
                if at <= time + 1e-9
            ]
            values.append(before[-1] if before else run.history[0].accuracies[0])
        assert mean == pytest.approx(sum(values) / 3)
        assert (low, high) == (min(values), max(values))


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path, [], finished=False)
    with pytest.raises(InputError, match="nothing to draw of er"):
        curve("er", [run.columns], lambda columns: columns.accuracy())


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    runs = [ocar_lab.run(small(seed=s, probe=False), out=tmp_path) for s in (0, 1)]
    everything, first = accuracy_curves(runs)
    assert [c.label for c in everything] == [c.label for c in first] == ["er"]
    assert everything[0].mean[-1] == pytest.approx(np.mean([r.history[-1].accuracy for r in runs]))
    draw_accuracy(runs, tmp_path / "deep" / "picture.png")
    assert (tmp_path / "deep" / "picture.png").read_bytes().startswith(b"\x89PNG")
