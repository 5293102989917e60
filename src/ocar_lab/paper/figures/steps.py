"""The effective step size in an eigendirection of the curvature: α / (σ + τ)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocar.errors import ConfigError
from ocar_lab.paper.figures.store import Wanted

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Line:
    """The step size over the eigenvalue, for one α and one τ."""

    lr: float
    """α."""

    tau: float
    """τ."""

    eigenvalues: tuple[float, ...]
    """σ."""

    steps: tuple[float, ...]
    """α / (σ + τ)."""


def effective_step(eigenvalues: npt.ArrayLike, *, lr: float, tau: float) -> Floats:
    """The factor that the gradient is multiplied with in each eigendirection.

    It tends to α/τ, the most there is, where σ is far below τ, and to α/σ far above it.

    Args:
        eigenvalues: σ, not negative, of any shape.
        lr: α.
        tau: τ.

    Raises:
        ConfigError: α or τ is not positive.
    """
    if lr <= 0 or tau <= 0:
        raise ConfigError(f"Invalid {lr=}, {tau=}. Must both be larger than 0.")
    return lr / (np.asarray(eigenvalues, dtype=np.float64) + tau)


def line_name(lr: float, tau: float) -> str:
    """What the line of a pair is called."""
    return f"α {lr:g}, τ {tau:g}"


def wanted(lrs: Sequence[float], taus: Sequence[float], *, command: str) -> Wanted:
    """What the figure is made from: a line for each pair."""
    pairs = itertools.product(lrs, taus)
    return Wanted(
        settings={},
        parts={line_name(lr, tau): {"lr": lr, "tau": tau} for lr, tau in pairs},
        command=command,
    )


def make_line(lr: float, tau: float) -> Line:
    """One line, from σ = 10⁻¹⁰ to 10⁶."""
    eigenvalues = np.logspace(-10, 6, 97)
    steps = effective_step(eigenvalues, lr=lr, tau=tau)
    return Line(
        lr=lr, tau=tau, eigenvalues=tuple(eigenvalues.tolist()), steps=tuple(steps.tolist())
    )
