"""WC-Acc had there been fewer evaluations, against the metric on those that are left."""

from __future__ import annotations

import numpy as np
import pytest
from scripts import load_script

from ocar.events import Evaluated
from ocar.metrics import worst_case_accuracy

script = load_script("experiments/seldom_evaluated.py")


@pytest.mark.parametrize(
    ("every", "kept"), [(1, range(12)), (4, (0, 3, 4, 7, 8, 11)), (0, (3, 7, 11))]
)
def test_it_is_the_metric_of_what_is_left(every: int, kept: range | tuple[int, ...]) -> None:
    correct = np.random.default_rng(0).integers(0, 100, (12, 3))
    history = np.where(np.arange(3) <= np.arange(12)[:, None] // 4, correct / 100, np.nan)
    events = [
        Evaluated(
            correct=tuple(correct[index, : index // 4 + 1].tolist()),
            sizes=(100,) * (index // 4 + 1),
            index=index,
            task=index // 4,
            seconds=0.0,
            seen=index,
        )
        for index in range(12)
    ]
    found = script.worst_case(events, every)
    assert found == pytest.approx(worst_case_accuracy(history[list(kept)]))
