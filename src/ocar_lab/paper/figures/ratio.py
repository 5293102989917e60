"""How much longer the curvature makes the gradient, batch by batch, with a small τ.

With τ = α/100 nothing holds back directions of little curvature, and each new class shows: its
unit predicts next to nothing, so that its gradient is large and its Fisher information small.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocar.errors import NumericalError
from ocar.evaluate import evaluate
from ocar.events import Learned, TaskEnded
from ocar_lab.paper.figures.live import Listen, Setup, quiet
from ocar_lab.paper.figures.store import Wanted

METHOD = "ocar"

PART = 100.0
"""α over τ."""


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """One run."""

    lr: float
    """α."""

    tau: float
    """τ."""

    ratios: tuple[float, ...]
    """For each batch that was learned, on its last pass: ‖g after‖ / ‖g before‖."""

    boundaries: tuple[int, ...]
    """Batches learned when each task but the last ended."""


def ratio_settings(
    setup: Setup, lr: float | None = None, ema: float | None = None
) -> dict[str, Any]:
    """The settings of the run: τ = α/100 at all times.

    Args:
        setup: Benchmark, seed, batches.
        lr: α; the selected one by default. With so small a τ a smaller one may be needed.
        ema: Weight of a new estimate of the curvature; the selected one by default.
    """
    lr = setup.config(METHOD).resolve()[0].lr if lr is None else lr
    own = {} if ema is None else {"ema": ema}
    return {"lr": lr, "tau": lr / PART, "tau_step": 0.0, "track_norms": True, **own}


def wanted(setup: Setup, settings: Mapping[str, Any], *, command: str) -> Wanted:
    """What the figure is made from: one run with :func:`ratio_settings`."""
    config = setup.config(METHOD, **settings)
    return Wanted(
        settings=setup.describe(), parts={METHOD: setup.describe_run(config)}, command=command
    )


def run_ratios(setup: Setup, settings: Mapping[str, Any], *, listen: Listen = quiet) -> Ratios:
    """The run.

    Args:
        setup: Benchmark, seed, batches.
        settings: What :func:`ratio_settings` gave.
        listen: Told of progress.

    Raises:
        NumericalError: The run diverged.
    """
    config = setup.config(METHOD, **settings)
    stream, learner = setup.stream(config), setup.learner(config)
    total = operator.length_hint(stream)
    ratios: list[float] = []
    ends: list[int] = []
    try:
        for event in evaluate(learner, stream, every="task"):
            if isinstance(event, Learned):
                values: dict[str, float] = getattr(event.report, "values", {})
                ratios.append(values["norm_ratio"])
                listen(event.index + 1, total)
            elif isinstance(event, TaskEnded):
                ends.append(len(ratios))
    except NumericalError as error:
        raise NumericalError(
            f"{error} With τ = α/{PART:.0f} it may need a smaller lr, or another ema."
        ) from error
    return Ratios(
        lr=settings["lr"],
        tau=settings["tau"],
        ratios=tuple(ratios),
        boundaries=tuple(ends[:-1]),
    )


def spikes(found: Ratios, *, after: int = 20) -> tuple[float, ...]:
    """At each boundary: the largest ratio of the first batches after it, over the median before.

    Args:
        found: A run.
        after: How many batches after the boundary count, and how many before it.
    """
    values = np.array(found.ratios)
    return tuple(
        float(values[b : b + after].max() / np.median(values[max(0, b - after) : b]))
        for b in found.boundaries
    )
