"""How much longer the curvature makes the gradient, batch by batch, with a small τ.

With τ = α/100 directions of little curvature are hardly damped, and each new class shows: its unit
predicts almost nothing, so its gradient is large and its Fisher information small.
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
from ocar_lab.paper.figures import style
from ocar_lab.paper.figures.base import RunFigure
from ocar_lab.paper.figures.setup import Listen, Setup, quiet
from ocar_lab.paper.figures.store import Wanted

METHOD = "ocar"

LR_OVER_TAU = 100.0


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """One run."""

    lr: float  # α
    tau: float  # τ
    ratios: tuple[float, ...]  # ‖g after‖ / ‖g before‖ of each batch, on its last pass
    boundaries: tuple[int, ...]  # batches learned when each task but the last ended


@dataclass(frozen=True, kw_only=True)
class RatioFigure(RunFigure):
    """‖preconditioned gradient‖ / ‖gradient‖ over the stream with τ = α/100."""

    kind = Ratios

    lr: float | None = None
    """α; by default the selected one, with which so small a τ may diverge."""

    ema: float | None = None
    """Weight of a new estimate in the average of the curvature; by default the selected one."""

    @property
    def name(self) -> str:
        """Name of the files."""
        return f"ratio-{self.benchmark}"

    def wanted(self) -> Wanted:
        """One run."""
        setup = self.setup()
        config = setup.config(METHOD, **ratio_settings(setup, self.lr, self.ema))
        return Wanted(settings=setup.describe(), parts={METHOD: setup.describe_run(config)})

    def make(self, part: str, listen: Listen) -> Ratios:
        """Make the run."""
        setup = self.setup()
        return run_ratios(setup, ratio_settings(setup, self.lr, self.ema), listen=listen)

    def draw(self, parts: Mapping[str, Ratios]) -> dict[str, Any]:
        """The ratio over the stream."""
        return {self.name: draw_ratio(*parts.values())}


FIGURE = RatioFigure


def ratio_settings(
    setup: Setup, lr: float | None = None, ema: float | None = None
) -> dict[str, Any]:
    """The settings of the run: τ = α/100 at all times.

    Args:
        setup: Benchmark, seed, batches.
        lr: α; the selected one by default. So small a τ may need a smaller one.
        ema: Weight of a new estimate of the curvature; the selected one by default.
    """
    lr = setup.config(METHOD).resolve()[0].lr if lr is None else lr
    own = {} if ema is None else {"ema": ema}
    return {"lr": lr, "tau": lr / LR_OVER_TAU, "tau_step": 0.0, "track_norms": True, **own}


def run_ratios(setup: Setup, settings: Mapping[str, Any], *, listen: Listen = quiet) -> Ratios:
    """The run.

    Args:
        setup: Benchmark, seed, batches.
        settings: By :func:`ratio_settings`.
        listen: Called with the progress.

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
            f"{error} With τ = α/{LR_OVER_TAU:.0f} it may need a smaller lr, or another ema."
        ) from error
    lr, tau = settings["lr"], settings["tau"]
    return Ratios(lr=lr, tau=tau, ratios=tuple(ratios), boundaries=tuple(ends[:-1]))


def spikes(found: Ratios, *, after: int = 20) -> tuple[float, ...]:
    """At each boundary: the largest ratio shortly after it, over the median shortly before.

    Args:
        found: A run.
        after: Batches after the boundary that count, and batches before it.
    """
    values = np.array(found.ratios)
    return tuple(
        float(values[b : b + after].max() / np.median(values[max(0, b - after) : b]))
        for b in found.boundaries
    )


def draw_ratio(found: Ratios) -> Any:
    """The ratio of gradient norms over the stream, with the boundaries marked."""
    figure = style.new_figure(8, 3.4)
    ax = figure.subplots()
    times = np.arange(1, len(found.ratios) + 1)
    style.mark_boundaries(ax, found.boundaries)
    ax.semilogy(times, found.ratios, color=style.BLUE, linewidth=0.8)
    top = max(found.ratios)
    # The first batch has nothing to replay and lies far below the others.
    ax.set_ylim(0.6 * min(found.ratios[1:]), 3 * top)
    marks = [top * 1.6] * len(found.boundaries)
    ax.plot(found.boundaries, marks, "v", color=style.RED, markersize=6)
    style.clean(ax)
    ax.set_xlim(0, len(times))
    ax.set_xlabel("batches learned; triangles and grey lines are task boundaries", fontsize=9)
    ax.set_ylabel("‖preconditioned gradient‖ / ‖gradient‖", fontsize=9)
    ax.set_title(f"OCAR with α = {found.lr:.3g} and τ = α/100", loc="left", fontsize=10)
    return figure
