"""The grid over α and α/τ: what each pair gives at the end of the stream, on test data.

τ stays as it is over the stream (Δτ = 0), so that each run has one α and one α/τ.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocar.errors import NumericalError
from ocar.evaluate import evaluate
from ocar.events import Finished, Learned, TaskEnded
from ocar_lab.paper.figures.live import Listen, Setup, quiet, task_accuracy
from ocar_lab.paper.figures.store import Wanted

Floats = npt.NDArray[np.float64]

METHOD = "ocar"

METRICS = {
    "average": "accuracy on all tasks",
    "forgetting": "forgetting of the first task",
    "last": "accuracy on the last task",
}
"""What is shown of a cell, and what it is."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run."""

    lr: float
    """α."""

    ratio: float
    """α/τ."""

    average: float | None
    """Accuracy on all test samples at the end; None if the run diverged."""

    forgetting: float | None
    """Test accuracy on the first task after it ended, less that at the end."""

    last: float | None
    """Accuracy on the test samples of the last task at the end."""


def cell_name(lr: float, ratio: float) -> str:
    """What the run of a pair is called."""
    return f"α {lr:.6g}, α/τ {ratio:.6g}"


def cell_settings(lr: float, ratio: float) -> dict[str, Any]:
    """The settings of a pair."""
    return {"lr": lr, "tau": lr / ratio, "tau_step": 0.0}


def wanted(setup: Setup, lrs: Sequence[float], ratios: Sequence[float], *, command: str) -> Wanted:
    """What the figure is made from: a run for each pair.

    Args:
        setup: Benchmark, seed, batches.
        lrs: Values of α.
        ratios: Values of α/τ.
        command: What makes it.
    """
    pairs = list(itertools.product(lrs, ratios))
    return Wanted(
        settings={**setup.describe(), "seed": setup.seed},
        parts={
            cell_name(lr, ratio): setup.describe_run(
                setup.config(METHOD, **cell_settings(lr, ratio))
            )
            for lr, ratio in pairs
        },
        command=command,
    )


def run_cell(setup: Setup, lr: float, ratio: float, *, listen: Listen = quiet) -> Cell:
    """One run of the grid.

    Args:
        setup: Benchmark, seed, batches.
        lr: α.
        ratio: α/τ.
        listen: Told of progress.
    """
    config = setup.config(METHOD, **cell_settings(lr, ratio))
    stream, learner = setup.stream(config), setup.learner(config)
    total = operator.length_hint(stream)
    before, end = 0.0, None
    try:
        for event in evaluate(learner, stream, every="task"):
            if isinstance(event, Learned):
                listen(event.index + 1, total)
            elif isinstance(event, TaskEnded) and event.task == 0:
                before = task_accuracy(learner, stream.test(0))
            elif isinstance(event, Finished):
                end = event
    except NumericalError:  # a pair that diverges is a result too
        end = None
    if end is None:
        return Cell(lr=lr, ratio=ratio, average=None, forgetting=None, last=None)
    return Cell(
        lr=lr,
        ratio=ratio,
        average=end.accuracy,
        forgetting=before - end.accuracies[0],
        last=end.accuracies[-1],
    )


def matrix(cells: Mapping[str, Cell], metric: str) -> tuple[list[float], list[float], Floats]:
    """Values of α, values of α/τ, and a metric for each pair, ``(α/τ, α)``; NaN if it diverged.

    Args:
        cells: The runs.
        metric: A name in ``METRICS``.
    """
    lrs = sorted({cell.lr for cell in cells.values()})
    ratios = sorted({cell.ratio for cell in cells.values()})
    values = np.full((len(ratios), len(lrs)), np.nan)
    for cell in cells.values():
        value = getattr(cell, metric)
        if value is not None:
            values[ratios.index(cell.ratio), lrs.index(cell.lr)] = value
    return lrs, ratios, values


def centred(middle: float, count: int, *, factor: float) -> tuple[float, ...]:
    """Values at equal ratios around one, to two digits, ascending.

    Args:
        middle: The value in the middle.
        count: How many.
        factor: From each to the next.
    """
    return tuple(float(f"{middle * factor ** (i - (count - 1) / 2):.2g}") for i in range(count))
