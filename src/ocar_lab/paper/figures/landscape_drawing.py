"""The numbers of a loss landscape and their pictures: surfaces with the path, learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocar_lab import drawing
from ocar_lab.runs.columns import Floats

Row = tuple[float, ...]

LEVELS = 14
TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """The path of one learner, its plane, and the losses there."""

    times: tuple[int, ...]  # batches learned at each point of the path; 0 at the start
    boundaries: tuple[int, ...]  # points that end a task, by their place; the last is the end
    x: Row  # first coordinate of each point
    y: Row  # second coordinate of each point
    off_plane: Row  # distance of each point from the plane
    accuracies: tuple[Row, ...]  # at each point on each task's test samples; unseen counts as wrong
    losses: tuple[Row, ...]  # over all classes at start, after the first task and at the end
    grid_x: Row  # first coordinates of the surfaces
    grid_y: Row  # second coordinates of the surfaces
    surfaces: tuple[tuple[Row, ...], ...]  # loss by task, second and first coordinate
    length: Row  # length of the path within each task, over all weights
    straight: Row  # distance from each task's start to its end, over all weights

    @property
    def mean_surface(self) -> tuple[Row, ...]:
        """The mean of the surfaces over tasks."""
        rows = np.mean(np.array(self.surfaces), axis=0).tolist()
        return tuple(tuple(row) for row in rows)


def draw_surfaces(paths: Mapping[str, Trajectory], *, most: int | None = None) -> Any:
    """A row for each method: the loss of the first tasks and of the mean, with the path on each."""
    tasks = range(len(next(iter(paths.values())).surfaces))[:most]
    columns = len(tasks) + 1
    figure = drawing.new_figure(3.3 * columns + 0.7, 3.1 * len(paths) + 0.3)
    axes = figure.subplots(len(paths), columns, squeeze=False)
    shown = {
        method: [np.array(path.surfaces[task]) for task in tasks] + [np.array(path.mean_surface)]
        for method, path in paths.items()
    }
    levels = _levels([surface for own in shown.values() for surface in own])
    names = [f"task {task + 1}" for task in tasks] + ["mean of all tasks"]
    drawn = None
    for row, (method, path) in zip(axes, paths.items(), strict=True):
        for ax, surface, name in zip(row, shown[method], names, strict=True):
            drawn = _surface(ax, path, surface, levels)
            ax.set_title(f"{drawing.shown(method)}: {name}", loc="left", fontsize=10)
            ax.set_xlabel("distance along ū", fontsize=9)
        row[0].set_ylabel("distance along v̄", fontsize=9)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.7, pad=0.015, label="cross-entropy (nats)")
    ticks = [tick for tick in TICKS if levels[0] <= tick <= levels[-1]]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes[0][0].legend(fontsize=7.5, frameon=True, framealpha=0.9, edgecolor="0.8")
    return figure


def _levels(surfaces: Sequence[Floats]) -> Floats:
    """Common levels, evenly spread on a logarithmic scale."""
    low = max(0.05, min(float(surface.min()) for surface in surfaces))
    high = max(float(np.quantile(surface, 0.98)) for surface in surfaces)
    return np.geomspace(low, max(high, 2 * low), LEVELS)


def _surface(ax: Any, path: Trajectory, surface: Floats, levels: Floats) -> Any:
    from matplotlib.colors import LogNorm

    where = (path.grid_x, path.grid_y, np.clip(surface, levels[0], levels[-1]))
    options = {"levels": levels, "norm": LogNorm(levels[0], levels[-1])}
    filled = ax.contourf(*where, cmap="cividis", **options)
    filled.set_rasterized(True)
    ax.contour(*where, colors="white", linewidths=0.4, alpha=0.6, **options)
    x, y = np.array(path.x), np.array(path.y)
    # A white line under the path keeps it visible on light and dark surfaces.
    ax.plot(x, y, color="white", linewidth=2.4)
    ax.plot(x, y, color=drawing.RED, linewidth=1.1, label="path")
    ends, end = list(path.boundaries[:-1]), path.boundaries[-1]
    star = {"linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.8}
    ax.plot(x[0], y[0], marker="o", color="black", markersize=7, label="start", **star)
    ax.plot(x[ends], y[ends], marker="*", color="black", markersize=12, label="boundary", **star)
    ax.plot(x[end], y[end], marker="*", color=drawing.ORANGE, markersize=15, label="end", **star)
    ax.tick_params(labelsize=8)
    ax.set_xlim(path.grid_x[0], path.grid_x[-1])
    ax.set_ylim(path.grid_y[0], path.grid_y[-1])
    return filled


def draw_learning(paths: Mapping[str, Trajectory]) -> Any:
    """Test accuracy on each task and on their mean, over time."""
    tasks = len(next(iter(paths.values())).surfaces)
    columns = 3
    rows = -(-(tasks + 1) // columns)
    figure = drawing.new_figure(10, 2.5 * rows + 0.2)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for number, ax in enumerate(axes[: tasks + 1]):
        for method, (colour, line, _) in drawing.method_styles(paths).items():
            path = paths[method]
            values = 100 * np.array(path.accuracies)
            chosen = values[:, number - 1] if number else values.mean(1)
            style = {"color": colour, "linestyle": line, "linewidth": 1.2}
            ax.plot(path.times, chosen, label=drawing.shown(method), **style)
            drawing.mark_boundaries(ax, [path.times[i] for i in path.boundaries[:-1]])
        drawing.clean(ax, title=f"task {number}" if number else "mean of all tasks")
        ax.set_ylim(0, 103)
        ax.set_xlim(0, max(path.times[-1] for path in paths.values()))
    for ax in axes[tasks + 1 :]:
        ax.set_visible(False)
    for ax in axes[max(0, tasks + 1 - columns) : tasks + 1]:
        ax.set_xlabel("batches learned", fontsize=9)
        ax.tick_params(labelbottom=True)
    for ax in axes[::columns]:
        ax.set_ylabel("test accuracy (%)", fontsize=9)
    axes[0].legend(fontsize=8, frameon=True, framealpha=1, edgecolor="0.8", loc="lower right")
    return figure
