"""The convex experiment: L_p and L_s of four methods on a stream of linear regressions.

L_p sums the loss of each incoming batch before it is learned, L_s the loss on all data so far after
each step. The data are the same for every seed; their order and the memory are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ocar.events import Evaluated
from ocar_lab.paper.figures import style
from ocar_lab.paper.figures.base import PaperFigure
from ocar_lab.paper.figures.setup import Listen, Setup
from ocar_lab.paper.figures.store import Wanted
from ocar_lab.runs.columns import Floats

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


class Average(NamedTuple):
    """The sums of one method over several seeds, each ``(n,)``."""

    times: Floats
    l_p: Floats
    l_p_std: Floats
    l_s: Floats
    l_s_std: Floats
    totals: Floats  # L_p + L_s of each seed, (seeds,)


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
    """Keep only so many batches of each task, from its start; all by default."""

    preset: tuple[Path, ...] = ()
    """Files with the settings of methods, as ocar tune convex METHOD writes them."""

    def setup(self, seed: int = 0) -> Setup:
        """The runs of a seed."""
        return Setup(benchmark="convex", seed=seed, batches=self.batches, preset=self.preset)

    def wanted(self) -> Wanted:
        """A run for each method and seed."""
        configs = {
            part_name(method, seed): self.setup(seed).config(method)
            for method in self.methods
            for seed in self.seeds
        }
        setup = self.setup()
        return Wanted(
            settings={**setup.describe(), "every": EVERY},
            parts={name: setup.describe_run(config) for name, config in configs.items()},
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
        found = averages(parts)
        ends = next(iter(parts.values())).boundaries
        figure = style.new_figure(12, 3.8)
        *axes, summed = figure.subplots(1, 3, width_ratios=(3, 3, 2))
        titles = ("L_p: each batch before it is learned", "L_s: all data so far, after each step")
        for ax, key, title in zip(axes, ("l_p", "l_s"), titles, strict=True):
            for method, (colour, line, _) in style.method_styles(found).items():
                one = found[method]
                mean, std = getattr(one, key), getattr(one, f"{key}_std")
                label = f"{style.shown(method)}: {mean[-1]:.1f} ± {std[-1]:.1f}"
                ax.plot(one.times, mean, color=colour, linestyle=line, linewidth=1.5, label=label)
                ax.fill_between(
                    one.times, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0
                )
            style.mark_boundaries(ax, ends[:-1])
            style.clean(ax)
            ax.set_xlim(0, ends[-1])
            ax.set_ylim(0, None)
            ax.set_title(title, loc="left", fontsize=10)
            ax.set_xlabel("batches learned; grey lines are task boundaries", fontsize=9)
            ax.set_ylabel("squared error, summed over batches", fontsize=9)
            ax.legend(**style.LEGEND, loc="upper left", title="at the end", handlelength=3.5)
        for place, (method, (colour, _, marker)) in enumerate(style.method_styles(found).items()):
            totals = found[method].totals
            spots = place + np.linspace(-0.2, 0.2, len(totals))
            summed.plot(spots, totals, marker, color=colour, markersize=4)
            summed.hlines(totals.mean(), place - 0.35, place + 0.35, color="black", linewidth=1.5)
        style.clean(summed)
        names = [f"{style.shown(name)}\n{one.totals.mean():.0f}" for name, one in found.items()]
        summed.set_xticks(range(len(found)), names)
        summed.set_ylabel("squared error, summed over batches", fontsize=9)
        summed.set_title("L_p + L_s at the end", loc="left", fontsize=10)
        summed.set_xlabel("a mark for each seed, and their mean", fontsize=9)
        return figure


FIGURE = ConvexFigure


def part_name(method: str, seed: int) -> str:
    """The name of the run of a method with a seed."""
    return f"{method}, seed {seed}"


def split_name(name: str) -> tuple[str, int]:
    """The method and the seed of a part."""
    method, _, seed = name.rpartition(", seed ")
    return method, int(seed)


def averages(parts: Mapping[str, Sums]) -> dict[str, Average]:
    """Mean and sample standard deviation over seeds, by method.

    Args:
        parts: The runs, by :func:`part_name`.
    """
    together: dict[str, list[Sums]] = {}
    for name, sums in parts.items():
        together.setdefault(split_name(name)[0], []).append(sums)
    found = {}
    for method, runs in together.items():
        l_p, l_s = (np.array([getattr(run, key) for run in runs]) for key in ("l_p", "l_s"))
        ddof = 1 if len(runs) > 1 else 0
        found[method] = Average(
            times=np.array(runs[0].times, dtype=np.float64),
            l_p=l_p.mean(0),
            l_p_std=l_p.std(0, ddof=ddof),
            l_s=l_s.mean(0),
            l_s_std=l_s.std(0, ddof=ddof),
            totals=np.array([run.total for run in runs]),
        )
    return found
