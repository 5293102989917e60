"""Accuracy over time: the numbers from stored runs, then their picture.

Time is counted in tasks: 2.5 is the middle of the third. Tasks of different seeds can have
different numbers of batches, and this way their boundaries fall together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ocar.errors import InputError, MissingPackageError
from ocar.events import Evaluated
from ocar_lab.runs import Run
from ocar_lab.styles import for_matplotlib, looks

Floats = npt.NDArray[np.float64]

STEPS = 50
"""Points in time a task."""


class Curve(NamedTuple):
    """A number over time, over several seeds."""

    label: str
    """What it is of."""

    times: Floats
    """Time in tasks, ``(n,)``."""

    mean: Floats
    """Mean over seeds, ``(n,)``."""

    low: Floats
    """Lowest over seeds, ``(n,)``."""

    high: Floats
    """Highest over seeds, ``(n,)``."""


def times_in_tasks(history: Sequence[Evaluated]) -> Floats:
    """When each evaluation was made, ``(evaluations,)``: the j-th of m in task t at t + j/m.

    Args:
        history: The evaluations of a run, in order; tasks count from 0, j from 1.
    """
    tasks = np.array([event.task for event in history])
    times = np.empty(len(tasks))
    for task in np.unique(tasks):
        members = np.flatnonzero(tasks == task)
        times[members] = task + np.arange(1, len(members) + 1) / len(members)
    return times


def curve(
    label: str, histories: Sequence[Sequence[Evaluated]], number: Callable[[Evaluated], float]
) -> Curve:
    """A number over time: at each moment, of each seed, the evaluation made last.

    Args:
        label: What it is of.
        histories: The evaluations of each seed.
        number: What to take of an evaluation.
    """
    if not histories or not all(histories):
        raise InputError(f"There is nothing to draw of {label}: a run has no evaluation.")
    ends = min(history[-1].task + 1 for history in histories)
    times = np.linspace(0, ends, ends * STEPS + 1)[1:]
    values = []
    for history in histories:
        numbers = np.array([number(event) for event in history])
        # The first point in time may come before the first evaluation.
        index = np.searchsorted(times_in_tasks(history), times + 1e-9, side="right") - 1
        values.append(numbers[np.maximum(index, 0)])
    stacked = np.stack(values)
    return Curve(label, times, stacked.mean(0), stacked.min(0), stacked.max(0))


def accuracy_curves(runs: Sequence[Run]) -> tuple[list[Curve], list[Curve]]:
    """Accuracy over time of each method: on all tasks so far, and on the first task alone."""
    together: dict[str, list[Sequence[Evaluated]]] = {}
    for run in runs:
        together.setdefault(run.label, []).append(run.history)
    everything = [curve(m, h, lambda event: event.accuracy) for m, h in together.items()]
    first = [curve(m, h, lambda event: event.accuracies[0]) for m, h in together.items()]
    return everything, first


def draw_accuracy(runs: Sequence[Run], path: Path) -> None:
    """Draw :func:`accuracy_curves` into a PNG file.

    Args:
        runs: Runs of one benchmark.
        path: The file.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            'Pictures are drawn by matplotlib, which is not installed: pip install "ocar[paper]"'
        ) from error
    panels = zip(("all tasks so far", "the first task"), accuracy_curves(runs), strict=True)
    figure = Figure(figsize=(8, 6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 1, sharex=True, sharey=True)
    for ax, (about, curves) in zip(axes, panels, strict=True):
        for one, look in zip(curves, looks([one.label for one in curves]), strict=True):
            colour, line, marker = for_matplotlib(look)
            ax.plot(
                one.times,
                100 * one.mean,
                linestyle=line,
                color=colour,
                marker=marker,
                markevery=STEPS // 2,
                markersize=4,
                linewidth=1.6,
                label=one.label,
            )
            ax.fill_between(
                one.times, 100 * one.low, 100 * one.high, color=colour, alpha=0.15, linewidth=0
            )
        last = round(max(one.times[-1] for one in curves))
        for boundary in range(1, last):
            ax.axvline(boundary, color="0.6", linewidth=0.8, zorder=0)
        ax.set_ylabel(f"accuracy on {about} (%)")
        ax.set_ylim(0, 103)
        ax.set_xlim(0, last)
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("tasks seen")
    axes[-1].set_xticks(range(last + 1))
    axes[0].legend(loc="lower left", frameon=True, framealpha=1, edgecolor="0.8")
    seeds = sorted({run.seed for run in runs})
    axes[0].set_title(f"{runs[0].benchmark}: mean and range over {len(seeds)} seeds", loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
