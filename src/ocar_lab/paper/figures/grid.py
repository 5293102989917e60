"""The grid over α and α/τ: what each pair gives at the end of the stream, on test data.

τ is constant over the stream (Δτ = 0), so that each run has one α and one α/τ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocar.errors import NumericalError
from ocar.events import Finished, TaskEnded
from ocar_lab import drawing
from ocar_lab.experiment import RunConfig
from ocar_lab.paper.figures.base import RunFigure
from ocar_lab.paper.figures.setup import Listen, task_accuracy
from ocar_lab.runs.columns import Floats

METHOD = "ocar"

METRICS = {
    "average": "accuracy on all tasks",
    "forgetting": "forgetting of the first task",
    "last": "accuracy on the last task",
}
"""The metrics of a cell, in words."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run; the metrics are None if it diverged."""

    lr: float  # α
    ratio: float  # α/τ
    average: float | None  # accuracy on all test samples at the end
    forgetting: float | None  # test accuracy on the first task after it, minus that at the end
    last: float | None  # accuracy on the test samples of the last task at the end


@dataclass(frozen=True, kw_only=True)
class GridFigure(RunFigure):
    """OCAR over α and α/τ: average accuracy, forgetting of the first task, accuracy on the last.

    τ does not grow here.
    """

    title = "grid"
    kind = Cell

    lrs: tuple[float, ...] = ()
    """Values of α; by default five around the selected one, at ratios of √10."""

    ratios: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """Values of α/τ."""

    def pairs(self) -> dict[str, tuple[float, float]]:
        """α and α/τ of each part."""
        lrs = self.lrs or centred(self.config(METHOD).resolve()[0].given_lr, 5, factor=10**0.5)
        return {f"α {a:.6g}, α/τ {r:.6g}": (a, r) for a in lrs for r in self.ratios}

    def configs(self) -> dict[str, RunConfig]:
        """A run for each pair."""
        return {
            name: self.config(METHOD, lr=lr, tau=lr / ratio, tau_step=0.0)
            for name, (lr, ratio) in self.pairs().items()
        }

    def describe(self) -> dict[str, Any]:
        """What all runs have in common, in plain values."""
        return {**super().describe(), "seed": self.seed}

    def make(self, part: str, listen: Listen) -> Cell:
        """One run."""
        lr, ratio = self.pairs()[part]
        learner, stream, events = self.run(self.configs()[part], listen)
        before = 0.0
        average = forgetting = last = None
        try:
            for event in events:
                if isinstance(event, TaskEnded) and event.task == 0:
                    before = task_accuracy(learner, stream.test(0))
                elif isinstance(event, Finished):
                    average, last = event.accuracy, event.accuracies[-1]
                    forgetting = before - event.accuracies[0]
        except NumericalError:  # a pair that diverges is a result too
            pass
        return Cell(lr=lr, ratio=ratio, average=average, forgetting=forgetting, last=last)

    def draw(self, parts: Mapping[str, Cell]) -> Any:
        """A square for each pair, with its number, once for each metric."""
        figure = drawing.new_figure(11.5, 3.9)
        axes = figure.subplots(1, len(METRICS))
        for ax, (metric, about) in zip(axes, METRICS.items(), strict=True):
            lrs, ratios, values = matrix(parts, metric)
            # Dark is bad in all three: little accuracy, much forgetting.
            cmap = "cividis_r" if metric == "forgetting" else "cividis"
            image = ax.imshow(100 * values, origin="lower", cmap=cmap, aspect="auto")
            ax.set_facecolor("0.88")  # of pairs that diverged
            low, high = image.get_clim()
            for (row, column), value in np.ndenumerate(100 * values):
                share = (value - low) / (high - low) if high > low else 0.5
                dark = share > 0.5 if metric == "forgetting" else share < 0.5
                text = "diverged" if np.isnan(value) else f"{value:z.1f}"
                colour = "black" if np.isnan(value) or not dark else "white"
                ax.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
            ax.set_xticks(range(len(lrs)), [f"{lr:.2g}" for lr in lrs])
            ax.set_yticks(range(len(ratios)), [f"{ratio:.2g}" for ratio in ratios])
            title, x, y = f"{about} (%)", "α (learning rate)", "α/τ (largest step size)"
            drawing.clean(ax, title=title, x=x, y=y)
            ax.tick_params(length=0)
            ax.spines[:].set_visible(False)
            figure.colorbar(image, ax=ax, shrink=0.85).ax.tick_params(labelsize=8)
        return figure


FIGURE = GridFigure


def matrix(cells: Mapping[str, Cell], metric: str) -> tuple[list[float], list[float], Floats]:
    """Values of α, values of α/τ, and a metric for each pair, ``(α/τ, α)``; NaN if it diverged."""
    lrs = sorted({cell.lr for cell in cells.values()})
    ratios = sorted({cell.ratio for cell in cells.values()})
    values = np.full((len(ratios), len(lrs)), np.nan)
    for cell in cells.values():
        values[ratios.index(cell.ratio), lrs.index(cell.lr)] = getattr(cell, metric)  # None is NaN
    return lrs, ratios, values


def centred(middle: float, count: int, *, factor: float) -> tuple[float, ...]:
    """A geometric sequence around a value, to two digits, ascending."""
    return tuple(float(f"{middle * factor ** (i - (count - 1) / 2):.2g}") for i in range(count))
