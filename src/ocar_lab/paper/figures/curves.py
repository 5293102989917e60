"""Validation accuracy over time from stored runs, with the spread over seeds.

Time is counted in tasks, so that the boundaries of different seeds coincide. A run with all classes
in one task is stretched over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocar_lab import drawing
from ocar_lab.paper.figures.store import Wanted, read_document
from ocar_lab.published import SPLITS
from ocar_lab.runs import Run
from ocar_lab.runs.columns import Columns
from ocar_lab.runs.timeline import STEPS, sampled


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One method."""

    seeds: tuple[int, ...]
    tasks: int  # of the benchmark: the length of time
    times: tuple[float, ...]  # in tasks
    mean: tuple[float, ...]  # validation accuracy on all tasks so far, mean over seeds
    std: tuple[float, ...]  # sample standard deviation over seeds; 0 for one


@dataclass(frozen=True, kw_only=True)
class Options:
    """Validation accuracy over time, mean and standard deviation over seeds, from stored runs.

    Missing runs are made first. Numbers in the file are drawn again without the runs.
    """

    out: Path = Path("results/figures")
    """Folder for the numbers and the pictures."""

    benchmark: str = "split-digits"
    """The benchmark."""

    methods: tuple[str, ...] = ("er", "ocar")
    """The methods; er-iid is ER with all classes in one task."""

    seeds: tuple[int, ...] = ()
    """Seeds; by default all that are stored, or 0 where there are none."""

    results: Path = Path("runs")
    """A folder that contains run folders, at any depth; missing runs are written there."""

    data_root: Path | None = None
    """Folder of the data sets; by default OCAR_DATA or the user's data folder."""

    workers: int | None = None
    """Runs in parallel, if any are missing; by default one for each core."""

    @property
    def stem(self) -> Path:
        """The files, without their endings."""
        return self.out / f"curves-{self.benchmark}"

    @property
    def file(self) -> Path:
        """The file of numbers."""
        return self.out / f"curves-{self.benchmark}.json"


def settings_of(benchmark: str) -> dict[str, Any]:
    """What all methods of a figure have in common; their splits, where there are two kinds."""
    common = {"benchmark": benchmark, "points of each task": STEPS}
    return common | ({"splits": "published"} if benchmark in SPLITS else {})


def drawn(file: Path, benchmark: str) -> dict[str, Any]:
    """The methods in the file of a figure; none if it is of other splits."""
    document = read_document(file) if file.exists() else {}
    return document["parts"] if document.get("settings") == settings_of(benchmark) else {}


def wanted(benchmark: str, chosen: Mapping[str, Sequence[Run]]) -> Wanted:
    """The parts: stored runs of each method."""
    return Wanted(
        settings=settings_of(benchmark),
        parts={
            label: {
                "hash": runs[0].hash,
                "seeds": sorted(run.seed for run in runs),
                "devices": sorted({run.device for run in runs}),
            }
            for label, runs in chosen.items()
        },
    )


def choose(runs: Sequence[Run], benchmark: str, label: str, seeds: Sequence[int]) -> list[Run]:
    """The finished runs of a method: of the configuration with the most of the seeds.

    Runs on other splits than the published are left out, since the curves of a figure share theirs.
    Among equals, a configuration without changed settings comes first. Without ``seeds`` all count.
    """
    together: dict[str, dict[int, Run]] = {}
    for run in runs:
        if (run.benchmark, run.label) != (benchmark, label) or run.summary is None:
            continue
        if "splits" in run.changed:
            continue
        if not seeds or run.seed in seeds:
            together.setdefault(run.hash, {})[run.seed] = run
    if not together:
        return []
    best = max(together.values(), key=lambda own: (len(own), not next(iter(own.values())).changed))
    return [best[seed] for seed in sorted(best)]


def make_curve(runs: Sequence[Run], *, tasks: int) -> Curve:
    """The curve of one method."""
    columns = [run.columns for run in runs]
    times, values = sampled(runs[0].label, columns, Columns.accuracy, tasks=tasks)
    std = values.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(times))
    return Curve(
        seeds=tuple(run.seed for run in runs),
        tasks=tasks,
        times=tuple(times.tolist()),
        mean=tuple(values.mean(0).tolist()),
        std=tuple(std.tolist()),
    )


def draw_curves(benchmark: str, curves: Mapping[str, Curve]) -> Any:
    """Accuracy over time: mean over seeds, a band of one standard deviation."""
    figure = drawing.new_figure(8, 4)
    ax = figure.subplots()
    tasks = max(one.tasks for one in curves.values())
    for label, (colour, line, marker) in drawing.method_styles(curves).items():
        one = curves[label]
        mean, std = 100 * np.array(one.mean), 100 * np.array(one.std)
        count = len(one.seeds)
        drawing.draw_band(
            ax,
            one.times,
            mean,
            (mean - std, mean + std),
            color=colour,
            linestyle=line,
            marker=marker,
            markevery=(STEPS - 1, max(STEPS, tasks // 10 * STEPS)),
            markersize=4,
            linewidth=1.3,
            label=f"{drawing.shown(label)}, {count} seed{'s' if count > 1 else ''}",
        )
    drawing.mark_boundaries(ax, range(1, tasks))
    ax.set_xlim(0, tasks)
    ax.set_ylim(0, 102)
    ax.set_xticks(range(0, tasks + 1, max(1, tasks // 10)))
    title = f"{benchmark}: mean, and one standard deviation"
    y = "validation accuracy on all tasks so far (%)"
    drawing.clean(ax, title=title, x="tasks learned", y=y)
    ax.legend(**drawing.LEGEND, handlelength=4)
    return figure
