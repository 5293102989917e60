"""The convex experiment: L_p and L_s of four methods on a stream of linear regressions.

L_p accumulates the loss of each incoming batch before it is learned, L_s the loss on all data so
far after each step. The data are the same for every seed; their order and the memory are not.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ocar.evaluate import evaluate
from ocar.events import Evaluated
from ocar_lab.paper.figures.live import Listen, Setup, quiet
from ocar_lab.paper.figures.store import Wanted

Floats = npt.NDArray[np.float64]

METHODS = ("er", "ewc", "ngd", "ocar")
"""What the paper compares."""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The two sums over time, of one run."""

    times: tuple[int, ...]
    """Batches learned."""

    l_p: tuple[float, ...]
    """L_p by then."""

    l_s: tuple[float, ...]
    """L_s by then."""

    boundaries: tuple[int, ...]
    """Batches learned at the end of each task."""

    @property
    def total(self) -> float:
        """L_p + L_s at the end, which settings are selected by."""
        return self.l_p[-1] + self.l_s[-1]


class Average(NamedTuple):
    """The sums of one method over several seeds, each ``(n,)``."""

    times: Floats
    l_p: Floats
    l_p_std: Floats
    l_s: Floats
    l_s_std: Floats
    totals: Floats
    """L_p + L_s of each seed, ``(seeds,)``."""


def wanted(
    setup: Setup, methods: Sequence[str], seeds: Sequence[int], *, every: int, command: str
) -> Wanted:
    """What the figure is made from: a run for each method and seed.

    Args:
        setup: Benchmark, batches, settings.
        methods: Names of methods.
        seeds: Seeds.
        every: Batches between two numbers that are kept.
        command: What makes it.
    """
    runs = {
        part_name(method, seed): replace(setup, seed=seed).config(method)
        for method in methods
        for seed in seeds
    }
    return Wanted(
        settings={**setup.describe(), "every": every},
        parts={name: setup.describe_run(config) for name, config in runs.items()},
        command=command,
    )


def part_name(method: str, seed: int) -> str:
    """What the run of a method with a seed is called."""
    return f"{method}, seed {seed}"


def split_name(name: str) -> tuple[str, int]:
    """The method and the seed of a part."""
    method, _, seed = name.rpartition(", seed ")
    return method, int(seed)


def run_sums(setup: Setup, method: str, *, every: int, listen: Listen = quiet) -> Sums:
    """One run.

    Args:
        setup: Benchmark, seed, batches, settings.
        method: Name of the method.
        every: Batches between two numbers that are kept; L_s itself is of every batch.
        listen: Told of progress.
    """
    config = setup.config(method)
    stream, learner = setup.stream(config), setup.learner(config)
    total = operator.length_hint(stream)
    events: list[Evaluated] = []
    for event in evaluate(learner, stream):
        if isinstance(event, Evaluated):
            events.append(event)
            listen(event.index + 1, total)
    tasks = [event.task for event in events]
    ends = [i for i, task in enumerate(tasks) if i + 1 == len(tasks) or tasks[i + 1] != task]
    kept = [i for i in range(len(events)) if (i + 1) % every == 0 or i in ends]
    return Sums(
        times=tuple(i + 1 for i in kept),
        l_p=tuple(events[i].l_p or 0.0 for i in kept),
        l_s=tuple(events[i].l_s or 0.0 for i in kept),
        boundaries=tuple(i + 1 for i in ends),
    )


def averages(parts: Mapping[str, Sums]) -> dict[str, Average]:
    """Mean and sample standard deviation over seeds, by method.

    Args:
        parts: The runs, by the names that :func:`wanted` gives them.
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
