"""The spectrum of the damped curvature on a real run, at the end of each task.

With factored damping the eigenvalues are the products (a + π√τ)(g + √τ/π) of the eigenvalues of
each layer's two factors, so none is below τ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ocar.events import TaskEnded
from ocar.learner import Learner
from ocar.methods.ocar import OCARTransform
from ocar_lab import drawing
from ocar_lab.experiment import RunConfig
from ocar_lab.paper.figures.base import RunFigure
from ocar_lab.paper.figures.setup import Listen

METHOD = "ocar"

WHOLE = "all layers"


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Some eigenvalues by rank, the largest first."""

    count: int  # eigenvalues in all
    ranks: tuple[int, ...]  # ranks to keep, from 1, evenly spread on a logarithmic axis
    values: tuple[float, ...]  # the eigenvalues of these ranks


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """The spectrum at the end of one task."""

    tau: float
    replay_weight: float  # of a replayed sample
    layers: dict[str, Ranked]  # by layer, and of all together


@dataclass(frozen=True, kw_only=True)
class Spectra:
    """One run."""

    lr: float  # α
    ends: tuple[Spectrum, ...]  # at the end of each task


@dataclass(frozen=True, kw_only=True)
class SpectrumFigure(RunFigure):
    """The eigenvalues of OCAR's damped curvature on a run, at the end of each task."""

    title = "spectrum"
    kind = Spectra

    def configs(self) -> dict[str, RunConfig]:
        """One run."""
        return {METHOD: self.config(METHOD)}

    def make(self, part: str, listen: Listen) -> Spectra:
        """The run."""
        learner, _, events = self.run(self.config(METHOD), listen)
        ends = tuple(measure(learner) for event in events if isinstance(event, TaskEnded))
        return Spectra(lr=learner.settings.given_lr, ends=ends)

    def draw(self, parts: Mapping[str, Spectra]) -> Any:
        """Eigenvalues by rank: of the network after each task, of each layer at the end."""
        (found,) = parts.values()
        figure = drawing.new_figure(9.5, 3.9)
        axes = figure.subplots(1, 2, sharey=True)
        dashes = ((0, (1, 1.2)), (0, (2, 1.5)), (0, (4, 1.5)), (0, (7, 1.5)), "-")
        tasks = len(found.ends)
        for number, end in enumerate(found.ends):
            whole = end.layers[WHOLE]
            axes[0].loglog(
                whole.ranks,
                whole.values,
                color=str(0.65 * (1 - number / max(1, tasks - 1))),
                linestyle=dashes[min(number * 4 // max(1, tasks - 1), 4)],
                linewidth=1.5,
                label=f"after task {number + 1}: τ = {end.tau:.2g}",
            )
        last = found.ends[-1]
        layers = [name for name in last.layers if name != WHOLE]
        for place, name in enumerate(layers):
            own = last.layers[name]
            axes[1].loglog(
                own.ranks,
                own.values,
                color=drawing.COLOURS[place % 4],
                marker="osD^"[place % 4],
                markevery=15,
                markersize=4,
                linewidth=1.3,
                label=f"{name}: {own.count:,} eigenvalues",
            )
        axes[1].axhline(last.tau, color="0.4", linewidth=0.9, linestyle=(0, (5, 3)))
        axes[1].text(1, last.tau, " τ", va="bottom", fontsize=9, color="0.3")
        titles = ("all layers, after each task", "by layer, at the end")
        for ax, title in zip(axes, titles, strict=True):
            drawing.clean(ax, title=title, x="rank, the largest first")
            ax.grid(color="0.92", linewidth=0.6)
            ax.legend(**drawing.LEGEND, loc="upper right", handlelength=4)
        axes[0].set_ylabel("eigenvalue of the damped curvature", fontsize=9)
        return figure


FIGURE = SpectrumFigure

POINTS = 120
"""Ranks of a layer that are drawn, at most."""


def rank(values: torch.Tensor) -> Ranked:
    """Eigenvalues ``(n,)`` by rank, as many as a picture can show."""
    ordered = values.double().sort(descending=True).values
    ranks = np.unique(np.logspace(0, np.log10(len(ordered)), POINTS).round().astype(int))
    kept = ordered[torch.from_numpy(ranks - 1)]
    return Ranked(count=len(ordered), ranks=tuple(ranks.tolist()), values=tuple(kept.tolist()))


def measure(learner: Learner) -> Spectrum:
    """The current spectrum of a learner's curvature."""
    transform = learner.transform
    assert isinstance(transform, OCARTransform)
    values = transform.curvature.eigenvalues()
    reported = transform.report()
    return Spectrum(
        tau=float(reported["tau"]),
        replay_weight=float(reported["replay_weight"]),
        layers={
            **{name: rank(own) for name, own in values.items()},
            WHOLE: rank(torch.cat(list(values.values()))),
        },
    )
