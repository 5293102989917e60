"""How much longer the curvature makes the gradient, batch by batch, with a small τ.

With τ = α/100 directions of little curvature are hardly damped, and each new class shows: its unit
predicts almost nothing, so its gradient is large and its Fisher information small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocar.errors import NumericalError
from ocar.events import Learned, TaskEnded
from ocar_lab import drawing
from ocar_lab.experiment import RunConfig
from ocar_lab.paper.figures.base import RunFigure
from ocar_lab.paper.figures.setup import Listen

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

    title = "ratio"
    kind = Ratios

    lr: float | None = None
    """α; by default the selected one, with which so small a τ may diverge."""

    ema: float | None = None
    """Weight of a new estimate in the average of the curvature; by default the selected one."""

    def configs(self) -> dict[str, RunConfig]:
        """One run, with τ = α/100 at all times."""
        lr = self.config(METHOD).resolve()[0].given_lr if self.lr is None else self.lr
        own = {"lr": lr, "tau": lr / LR_OVER_TAU, "tau_step": 0.0, "track_norms": True}
        own |= {} if self.ema is None else {"ema": self.ema}
        return {METHOD: self.config(METHOD, **own)}

    def make(self, part: str, listen: Listen) -> Ratios:
        """The run.

        Raises:
            NumericalError: The run diverged.
        """
        config = self.configs()[part]
        ratios: list[float] = []
        ends: list[int] = []
        try:
            for event in self.run(config, listen)[2]:
                if isinstance(event, Learned):
                    values: dict[str, float] = getattr(event.report, "values", {})
                    ratios.append(values["norm_ratio"])
                elif isinstance(event, TaskEnded):
                    ends.append(len(ratios))
        except NumericalError as error:
            raise NumericalError(
                f"{error} With τ = α/{LR_OVER_TAU:.0f} it may need a smaller lr, or another ema."
            ) from error
        lr, tau = config.settings["lr"], config.settings["tau"]
        return Ratios(lr=lr, tau=tau, ratios=tuple(ratios), boundaries=tuple(ends[:-1]))

    def draw(self, parts: Mapping[str, Ratios]) -> Any:
        """The ratio of gradient norms over the stream, with the boundaries marked."""
        (found,) = parts.values()
        figure = drawing.new_figure(8, 3.4)
        ax = figure.subplots()
        times = np.arange(1, len(found.ratios) + 1)
        drawing.mark_boundaries(ax, found.boundaries)
        ax.semilogy(times, found.ratios, color=drawing.BLUE, linewidth=0.8)
        top = max(found.ratios)
        # The first batch has nothing to replay and lies far below the others.
        ax.set_ylim(0.6 * min(found.ratios[1:]), 3 * top)
        marks = [top * 1.6] * len(found.boundaries)
        ax.plot(found.boundaries, marks, "v", color=drawing.RED, markersize=6)
        ax.set_xlim(0, len(times))
        drawing.clean(
            ax,
            title=f"OCAR with α = {found.lr:.3g} and τ = α/100",
            x="batches learned; triangles and grey lines are task boundaries",
            y="‖preconditioned gradient‖ / ‖gradient‖",
        )
        return figure


FIGURE = RatioFigure
