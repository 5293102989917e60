"""The effective step size in an eigendirection of the curvature: α / (σ + τ)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocar.errors import ConfigError
from ocar_lab import drawing
from ocar_lab.paper.figures.base import PaperFigure
from ocar_lab.paper.figures.setup import Listen
from ocar_lab.paper.figures.store import Wanted
from ocar_lab.runs.columns import Floats


@dataclass(frozen=True, kw_only=True)
class Line:
    """The step size over the eigenvalue, for one α and one τ."""

    lr: float  # α
    tau: float  # τ
    eigenvalues: tuple[float, ...]  # σ
    steps: tuple[float, ...]  # α / (σ + τ)


@dataclass(frozen=True, kw_only=True)
class StepsFigure(PaperFigure):
    """The effective step size α / (σ + τ) against the eigenvalue σ; needs no run."""

    title = "steps"
    kind = Line

    lrs: tuple[float, ...] = (1e-3, 1e-2)
    """Values of α."""

    taus: tuple[float, ...] = (1e-5, 1e-3, 1e-1)
    """Values of τ."""

    def pairs(self) -> dict[str, tuple[float, float]]:
        """α and τ of each part."""
        return {f"α {a:g}, τ {t:g}": (a, t) for a in self.lrs for t in self.taus}

    def wanted(self) -> Wanted:
        """A line for each pair."""
        parts = {name: {"lr": lr, "tau": tau} for name, (lr, tau) in self.pairs().items()}
        return Wanted(settings={}, parts=parts)

    def make(self, part: str, listen: Listen) -> Line:
        """One line, from σ = 10⁻¹⁰ to 10⁶."""
        lr, tau = self.pairs()[part]
        eigenvalues = np.logspace(-10, 6, 97)
        steps = tuple(effective_step(eigenvalues, lr=lr, tau=tau).tolist())
        return Line(lr=lr, tau=tau, eigenvalues=tuple(eigenvalues.tolist()), steps=steps)

    def draw(self, parts: Mapping[str, Line]) -> Any:
        """α / (σ + τ) against σ: a colour for each α, a line for each τ."""
        figure = drawing.new_figure(6, 4.2)
        ax = figure.subplots()
        lrs = sorted({line.lr for line in parts.values()})
        taus = sorted({line.tau for line in parts.values()})
        dashes = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
        for line in parts.values():
            place = lrs.index(line.lr)
            ax.loglog(
                line.eigenvalues,
                line.steps,
                color=drawing.COLOURS[place % 4],
                linestyle=dashes[taus.index(line.tau) % 4],
                marker="osD^v"[place % 5],
                markevery=(6, 18),
                markersize=4,
                linewidth=1.5,
                label=f"α = {line.lr:g}, τ = {line.tau:g}: at most {line.lr / line.tau:g}",
            )
        about = {"x": "σ, eigenvalue of the curvature", "y": "effective step size α / (σ + τ)"}
        drawing.clean(ax, **about)
        ax.grid(color="0.92", linewidth=0.6)
        ax.legend(**drawing.LEGEND, loc="lower left", handlelength=5)
        return figure


FIGURE = StepsFigure


def effective_step(eigenvalues: npt.ArrayLike, *, lr: float, tau: float) -> Floats:
    """The factor that multiplies the gradient in each eigendirection.

    It tends to α/τ, its maximum, where σ is far below τ, and to α/σ far above it.

    Raises:
        ConfigError: α or τ is not positive.
    """
    if lr <= 0 or tau <= 0:
        raise ConfigError(f"Invalid {lr=}, {tau=}. Must both be larger than 0.")
    return lr / (np.asarray(eigenvalues, dtype=np.float64) + tau)
