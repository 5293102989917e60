"""The convex experiment: L_p and L_s of four methods on a stream of linear regressions.

L_p sums the loss of each incoming batch before it is learned, L_s the loss on all data so far after
each step. The data are the same for every seed; their order and the memory are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ocar.events import Evaluated
from ocar_lab import drawing
from ocar_lab.optional import needed
from ocar_lab.paper.figures.base import PaperFigure
from ocar_lab.paper.figures.setup import Listen, Setup
from ocar_lab.paper.figures.store import Wanted

if TYPE_CHECKING:
    import polars as pl

METHODS = ("er", "ewc", "ngd", "ocar")
"""The methods that the paper compares."""

EVERY = 10
"""Batches between two numbers in the file."""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The two sums over time, of one run."""

    times: tuple[int, ...]  # batches learned
    l_p: tuple[float, ...]
    l_s: tuple[float, ...]
    boundaries: tuple[int, ...]  # batches learned at the end of each task

    @property
    def total(self) -> float:
        """L_p + L_s at the end, by which settings are selected."""
        return self.l_p[-1] + self.l_s[-1]


@dataclass(frozen=True, kw_only=True)
class ConvexFigure(PaperFigure):
    """L_p and L_s over time on the convex stream, mean and spread over seeds."""

    title = "convex"
    kind = Sums

    seeds: tuple[int, ...] = tuple(range(10))
    """Seeds; one run each of every method."""

    methods: tuple[str, ...] = METHODS
    """The methods."""

    batches: int | None = None
    """Batches of each task to keep, from its start; all by default."""

    preset: tuple[Path, ...] = ()
    """Files with the settings of methods, as ocar tune convex METHOD writes them."""

    def setup(self, seed: int = 0) -> Setup:
        """The runs of a seed."""
        return Setup(benchmark="convex", seed=seed, batches=self.batches, preset=self.preset)

    def wanted(self) -> Wanted:
        """A run for each method and seed."""
        setups = {seed: self.setup(seed) for seed in self.seeds}
        return Wanted(
            settings={**self.setup().describe(), "every": EVERY},
            parts={
                part_name(method, seed): setup.describe_run(setup.config(method))
                for method in self.methods
                for seed, setup in setups.items()
            },
        )

    def make(self, part: str, listen: Listen) -> Sums:
        """One run."""
        method, seed = split_name(part)
        setup = self.setup(seed)
        found = setup.run(setup.config(method), listen, every=1)[2]
        events = [event for event in found if isinstance(event, Evaluated)]
        tasks = [event.task for event in events]
        ends = [i for i, task in enumerate(tasks) if i + 1 == len(tasks) or tasks[i + 1] != task]
        kept = [i for i in range(len(events)) if (i + 1) % EVERY == 0 or i in ends]
        return Sums(
            times=tuple(i + 1 for i in kept),
            l_p=tuple(events[i].l_p or 0.0 for i in kept),
            l_s=tuple(events[i].l_s or 0.0 for i in kept),
            boundaries=tuple(i + 1 for i in ends),
        )

    def draw(self, parts: Mapping[str, Sums]) -> Any:
        """L_p and L_s over time, and their sum at the end; mean and spread over seeds."""
        totals: dict[str, list[float]] = {}
        for name, run in parts.items():
            totals.setdefault(split_name(name)[0], []).append(run.total)
        curves = {str(name): rows for (name,), rows in averages(parts).group_by("method")}
        ends = next(iter(parts.values())).boundaries
        figure = drawing.new_figure(12, 3.8)
        *axes, summed = figure.subplots(1, 3, width_ratios=(3, 3, 2))
        error = "squared error, summed over batches"
        titles = ("L_p: each batch before it is learned", "L_s: all data so far, after each step")
        lines = drawing.method_styles(totals)
        for ax, key, title in zip(axes, ("l_p", "l_s"), titles, strict=True):
            for method, (colour, line, _) in lines.items():
                own = curves[method].select("time", key, f"{key}_std")
                time, mean, std = (column.to_numpy() for column in own)
                label = f"{drawing.shown(method)}: {mean[-1]:.1f} ± {std[-1]:.1f}"
                properties = {"color": colour, "linestyle": line, "linewidth": 1.5, "label": label}
                drawing.draw_band(ax, time, mean, (mean - std, mean + std), **properties)
            drawing.mark_boundaries(ax, ends[:-1])
            ax.set_xlim(0, ends[-1])
            ax.set_ylim(0, None)
            x = "batches learned; grey lines are task boundaries"
            drawing.clean(ax, title=title, x=x, y=error)
            ax.legend(**drawing.LEGEND, loc="upper left", title="at the end", handlelength=3.5)
        for place, (method, (colour, _, marker)) in enumerate(lines.items()):
            marks = totals[method]
            spots = place + np.linspace(-0.2, 0.2, len(marks))
            summed.plot(spots, marks, marker, color=colour, markersize=4)
            summed.hlines(np.mean(marks), place - 0.35, place + 0.35, color="black", linewidth=1.5)
        names = [f"{drawing.shown(name)}\n{np.mean(each):.0f}" for name, each in totals.items()]
        summed.set_xticks(range(len(totals)), names)
        x = "a mark for each seed, and their mean"
        drawing.clean(summed, title="L_p + L_s at the end", x=x, y=error)
        return figure


FIGURE = ConvexFigure


def part_name(method: str, seed: int) -> str:
    """The name of the run of a method with a seed."""
    return f"{method}, seed {seed}"


def split_name(name: str) -> tuple[str, int]:
    """The method and the seed of a part."""
    method, _, seed = name.rpartition(", seed ")
    return method, int(seed)


def averages(parts: Mapping[str, Sums]) -> pl.DataFrame:
    """Mean and sample standard deviation over seeds of L_p and L_s, by method and time."""
    with needed("A figure", "polars", extra="cli"):
        import polars as pl
    runs = [
        pl.DataFrame({"time": own.times, "l_p": own.l_p, "l_s": own.l_s}).with_columns(
            method=pl.lit(split_name(name)[0])
        )
        for name, own in parts.items()
    ]
    sums = pl.col("l_p", "l_s")
    spread = sums.std().fill_null(0).name.suffix("_std")  # one seed has none
    return pl.concat(runs).group_by("method", "time", maintain_order=True).agg(sums.mean(), spread)
