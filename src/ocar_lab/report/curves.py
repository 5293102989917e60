"""Accuracy over time as a picture: the numbers from stored runs, then the drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ocar.files import new_file
from ocar_lab.drawing import draw_band, method_styles, new_figure
from ocar_lab.runs import Run
from ocar_lab.runs.columns import Columns, Floats
from ocar_lab.runs.timeline import STEPS, sampled


class Curve(NamedTuple):
    """A number over time, over several seeds."""

    label: str
    times: Floats  # in tasks, (n,)
    mean: Floats  # over seeds, (n,)
    low: Floats  # lowest over seeds, (n,)
    high: Floats  # highest over seeds, (n,)


def curve(label: str, runs: Sequence[Columns], number: Callable[[Columns], Floats]) -> Curve:
    """A number ``(n,)`` of each seed over time: at each time, that of the last evaluation.

    Raises:
        InputError: A run has no evaluation.
    """
    ends = min((int(run.task[-1]) + 1 for run in runs if len(run)), default=0)
    times, values = sampled(label, runs, number, tasks=ends)
    return Curve(label, times, values.mean(0), values.min(0), values.max(0))


def accuracy_curves(runs: Sequence[Run]) -> tuple[list[Curve], list[Curve]]:
    """Accuracy over time of each method: on all tasks so far, and on the first task."""
    together: dict[str, list[Columns]] = {}
    for run in runs:
        together.setdefault(run.label, []).append(run.columns)
    everything = [curve(name, own, Columns.accuracy) for name, own in together.items()]
    first = [curve(name, own, lambda run: run.accuracy_on(0)) for name, own in together.items()]
    return everything, first


def draw_accuracy(runs: Sequence[Run], path: Path) -> None:
    """Draw :func:`accuracy_curves` into a PNG file.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    panels = zip(("all tasks so far", "the first task"), accuracy_curves(runs), strict=True)
    figure = new_figure(8, 6)
    axes = figure.subplots(2, 1, sharex=True, sharey=True)
    for ax, (about, curves) in zip(axes, panels, strict=True):
        lines = method_styles(one.label for one in curves)
        for one in curves:
            colour, line, marker = lines[one.label]
            draw_band(
                ax,
                one.times,
                100 * one.mean,
                (100 * one.low, 100 * one.high),
                alpha=0.15,
                color=colour,
                linestyle=line,
                linewidth=1.6,
                marker=marker,
                markevery=STEPS // 2,
                markersize=4,
                label=one.label,
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
    with new_file(path) as file:
        figure.savefig(file, format="png", dpi=150)
