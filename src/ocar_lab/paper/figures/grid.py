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
from ocar_lab.paper.figures.base import RunFigure
from ocar_lab.paper.figures.setup import Listen, task_accuracy
from ocar_lab.paper.figures.store import Wanted
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
        lrs = self.lrs or centred(self.config(METHOD).resolve()[0].lr, 5, factor=10**0.5)
        return {f"α {a:.6g}, α/τ {r:.6g}": (a, r) for a in lrs for r in self.ratios}

    def wanted(self) -> Wanted:
        """A run for each pair."""
        configs = {n: self.config(METHOD, **cell_settings(*p)) for n, p in self.pairs().items()}
        return Wanted(
            settings={**self.describe(), "seed": self.seed},
            parts={name: self.describe_run(config) for name, config in configs.items()},
        )

    def make(self, part: str, listen: Listen) -> Cell:
        """One run."""
        lr, ratio = self.pairs()[part]
        config = self.config(METHOD, **cell_settings(lr, ratio))
        learner, stream, events = self.run(config, listen)
        before, end = 0.0, None
        try:
            for event in events:
                if isinstance(event, TaskEnded) and event.task == 0:
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
            ax.tick_params(labelsize=8, length=0)
            ax.spines[:].set_visible(False)
            ax.set_xlabel("α (learning rate)", fontsize=9)
            ax.set_ylabel("α/τ (largest step size)", fontsize=9)
            ax.set_title(f"{about} (%)", loc="left", fontsize=10)
            figure.colorbar(image, ax=ax, shrink=0.85).ax.tick_params(labelsize=8)
        return figure


FIGURE = GridFigure


def cell_settings(lr: float, ratio: float) -> dict[str, Any]:
    """The settings of a pair."""
    return {"lr": lr, "tau": lr / ratio, "tau_step": 0.0}


def matrix(cells: Mapping[str, Cell], metric: str) -> tuple[list[float], list[float], Floats]:
    """Values of α, values of α/τ, and a metric for each pair, ``(α/τ, α)``; NaN if it diverged."""
    lrs = sorted({cell.lr for cell in cells.values()})
    ratios = sorted({cell.ratio for cell in cells.values()})
    values = np.full((len(ratios), len(lrs)), np.nan)
    for cell in cells.values():
        value = getattr(cell, metric)
        if value is not None:
            values[ratios.index(cell.ratio), lrs.index(cell.lr)] = value
    return lrs, ratios, values


def centred(middle: float, count: int, *, factor: float) -> tuple[float, ...]:
    """A geometric sequence around a value, to two digits, ascending."""
    return tuple(float(f"{middle * factor ** (i - (count - 1) / 2):.2g}") for i in range(count))
