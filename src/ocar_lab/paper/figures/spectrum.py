"""The spectrum of the damped curvature on a real run, at the end of each task.

The eigenvalues are those that the inverse is made of: with factored damping the products
(a + π√τ)(g + √τ/π) of the eigenvalues of each layer's two factors, so none is below τ.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np
import torch

from ocar.evaluate import evaluate
from ocar.events import Learned, TaskEnded
from ocar.learner import Learner
from ocar.methods.ocar import OCARTransform
from ocar_lab.paper.figures.live import Listen, Setup, quiet
from ocar_lab.paper.figures.store import Wanted

METHOD = "ocar"

WHOLE = "all layers"


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Some eigenvalues by rank, the largest first."""

    count: int
    """How many eigenvalues there are."""

    ranks: tuple[int, ...]
    """Ranks that are kept, from 1, evenly spread on a logarithmic axis."""

    values: tuple[float, ...]
    """The eigenvalues of these ranks."""


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """The spectrum at the end of one task."""

    tau: float
    """τ at that time."""

    replay_weight: float
    """Weight of a replayed sample at that time."""

    layers: dict[str, Ranked]
    """By layer, and of all together."""


@dataclass(frozen=True, kw_only=True)
class Spectra:
    """One run."""

    lr: float
    """α."""

    ends: tuple[Spectrum, ...]
    """At the end of each task."""


def wanted(setup: Setup, *, command: str) -> Wanted:
    """What the figure is made from: one run."""
    return Wanted(
        settings=setup.describe(),
        parts={METHOD: setup.describe_run(setup.config(METHOD))},
        command=command,
    )


def rank(values: torch.Tensor, *, points: int = 120) -> Ranked:
    """Eigenvalues ``(n,)`` by rank, as many as a picture can show.

    Args:
        values: The eigenvalues, in any order.
        points: Most of them to keep.
    """
    ordered = values.double().sort(descending=True).values
    ranks = np.unique(np.logspace(0, np.log10(len(ordered)), points).round().astype(int))
    kept = ordered[torch.from_numpy(ranks - 1)]
    return Ranked(count=len(ordered), ranks=tuple(ranks.tolist()), values=tuple(kept.tolist()))


def measure(learner: Learner) -> Spectrum:
    """The spectrum of a learner's curvature now.

    Args:
        learner: OCAR, after a batch.
    """
    transform = learner._transform
    assert isinstance(transform, OCARTransform)
    values = transform.curvature.eigenvalues()
    reported = transform.report()
    return Spectrum(
        tau=reported["tau"],
        replay_weight=reported["replay_weight"],
        layers={
            **{name: rank(own) for name, own in values.items()},
            WHOLE: rank(torch.cat(list(values.values()))),
        },
    )


def run_spectra(setup: Setup, *, listen: Listen = quiet) -> Spectra:
    """The run.

    Args:
        setup: Benchmark, seed, batches.
        listen: Told of progress.
    """
    config = setup.config(METHOD)
    stream, learner = setup.stream(config), setup.learner(config)
    total = operator.length_hint(stream)
    ends = []
    for event in evaluate(learner, stream, every="task"):
        if isinstance(event, Learned):
            listen(event.index + 1, total)
        elif isinstance(event, TaskEnded):
            ends.append(measure(learner))
    return Spectra(lr=learner.settings.lr, ends=tuple(ends))
