"""The pictures of curves and of cells: from the numbers of a figure to a figure of matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ocar_lab.paper.figures import convex, grid, style
from ocar_lab.paper.figures.curves import STEPS, Curve
from ocar_lab.paper.figures.ratio import Ratios
from ocar_lab.paper.figures.spectrum import WHOLE, Spectra
from ocar_lab.paper.figures.steps import Line

LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": True, "framealpha": 1, "edgecolor": "0.8"}


def draw_convex(parts: Mapping[str, convex.Sums]) -> Any:
    """L_p and L_s over time, mean and standard deviation over seeds."""
    found = convex.averages(parts)
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
            ax.fill_between(one.times, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
        style.mark_boundaries(ax, ends[:-1])
        style.clean(ax)
        ax.set_xlim(0, ends[-1])
        ax.set_ylim(0, None)
        ax.set_title(title, loc="left", fontsize=10)
        ax.set_xlabel("batches learned; grey lines are task boundaries", fontsize=9)
        ax.set_ylabel("squared error, summed over batches", fontsize=9)
        ax.legend(**LEGEND, loc="upper left", title="at the end", handlelength=3.5)
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


def draw_grid(cells: Mapping[str, grid.Cell]) -> Any:
    """A square for each pair, with its number, once for each metric."""
    figure = style.new_figure(11.5, 3.9)
    axes = figure.subplots(1, len(grid.METRICS))
    for ax, (metric, about) in zip(axes, grid.METRICS.items(), strict=True):
        lrs, ratios, values = grid.matrix(cells, metric)
        # Dark is bad in all three: little accuracy, much forgetting.
        cmap = "cividis_r" if metric == "forgetting" else "cividis"
        image = ax.imshow(100 * values, origin="lower", cmap=cmap, aspect="auto")
        ax.set_facecolor("0.88")  # of pairs that diverged
        low, high = image.get_clim()
        for (row, column), value in np.ndenumerate(100 * values):
            share = (value - low) / (high - low) if high > low else 0.5
            dark = share > 0.5 if metric == "forgetting" else share < 0.5
            text = "diverged" if np.isnan(value) else f"{value:z.1f}"
            colour = "black" if np.isnan(value) or not dark else "white"
            ax.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
        ax.set_xticks(range(len(lrs)), [f"{lr:.2g}" for lr in lrs])
        ax.set_yticks(range(len(ratios)), [f"{ratio:.2g}" for ratio in ratios])
        ax.tick_params(labelsize=8, length=0)
        ax.spines[:].set_visible(False)
        ax.set_xlabel("α (learning rate)", fontsize=9)
        ax.set_ylabel("α/τ (largest step size)", fontsize=9)
        ax.set_title(f"{about} (%)", loc="left", fontsize=10)
        figure.colorbar(image, ax=ax, shrink=0.85).ax.tick_params(labelsize=8)
    return figure


def draw_steps(lines: Mapping[str, Line]) -> Any:
    """α / (σ + τ) against σ: a colour for each α, a line for each τ."""
    figure = style.new_figure(6, 4.2)
    ax = figure.subplots()
    lrs = sorted({line.lr for line in lines.values()})
    taus = sorted({line.tau for line in lines.values()})
    colours = dict(zip(lrs, (style.BLUE, style.RED, style.GREEN, style.PURPLE) * 9, strict=False))
    dashes = dict(zip(taus, ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2))) * 9, strict=False))
    markers = dict(zip(lrs, "osD^v" * 9, strict=False))
    for line in lines.values():
        ax.loglog(
            line.eigenvalues,
            line.steps,
            color=colours[line.lr],
            linestyle=dashes[line.tau],
            marker=markers[line.lr],
            markevery=(6, 18),
            markersize=4,
            linewidth=1.5,
            label=f"α = {line.lr:g}, τ = {line.tau:g}: at most {line.lr / line.tau:g}",
        )
    style.clean(ax)
    ax.grid(color="0.92", linewidth=0.6)
    ax.set_xlabel("σ, eigenvalue of the curvature", fontsize=9)
    ax.set_ylabel("effective step size α / (σ + τ)", fontsize=9)
    ax.legend(**LEGEND, loc="lower left", handlelength=5)
    return figure


def draw_spectrum(found: Spectra) -> Any:
    """Eigenvalues by rank: of the whole network after each task, and of each layer at the end."""
    figure = style.new_figure(9.5, 3.9)
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
    shapes = zip((style.BLUE, style.RED, style.GREEN, style.PURPLE) * 9, "osD^" * 9, strict=True)
    for name, (colour, marker) in zip(layers, shapes, strict=False):
        own = last.layers[name]
        axes[1].loglog(
            own.ranks,
            own.values,
            color=colour,
            marker=marker,
            markevery=15,
            markersize=4,
            linewidth=1.3,
            label=f"{name}: {own.count:,} eigenvalues",
        )
    axes[1].axhline(last.tau, color="0.4", linewidth=0.9, linestyle=(0, (5, 3)))
    axes[1].text(1, last.tau, " τ", va="bottom", fontsize=9, color="0.3")
    for ax, title in zip(
        axes, ("all layers, after each task", "by layer, at the end"), strict=True
    ):
        style.clean(ax)
        ax.grid(color="0.92", linewidth=0.6)
        ax.set_xlabel("rank, the largest first", fontsize=9)
        ax.set_title(title, loc="left", fontsize=10)
        ax.legend(**LEGEND, loc="upper right", handlelength=4)
    axes[0].set_ylabel("eigenvalue of the damped curvature", fontsize=9)
    return figure


def draw_ratio(found: Ratios) -> Any:
    """The ratio of gradient norms over the stream, boundaries marked."""
    figure = style.new_figure(8, 3.4)
    ax = figure.subplots()
    times = np.arange(1, len(found.ratios) + 1)
    style.mark_boundaries(ax, found.boundaries)
    ax.semilogy(times, found.ratios, color=style.BLUE, linewidth=0.8)
    top = max(found.ratios)
    # The first batch has nothing to replay and lies far below the others.
    ax.set_ylim(0.6 * min(found.ratios[1:]), 3 * top)
    ax.plot(
        found.boundaries, [top * 1.6] * len(found.boundaries), "v", color=style.RED, markersize=6
    )
    style.clean(ax)
    ax.set_xlim(0, len(times))
    ax.set_xlabel("batches learned; triangles and grey lines are task boundaries", fontsize=9)
    ax.set_ylabel("‖preconditioned gradient‖ / ‖gradient‖", fontsize=9)
    ax.set_title(f"OCAR with α = {found.lr:.3g} and τ = α/100", loc="left", fontsize=10)
    return figure


def draw_curves(benchmark: str, curves: Mapping[str, Curve]) -> Any:
    """Accuracy over time: mean over seeds, a band of one standard deviation."""
    figure = style.new_figure(8, 4)
    ax = figure.subplots()
    tasks = max(one.tasks for one in curves.values())
    for label, (colour, line, marker) in style.method_styles(curves).items():
        one = curves[label]
        mean, std = 100 * np.array(one.mean), 100 * np.array(one.std)
        count = len(one.seeds)
        ax.plot(
            one.times,
            mean,
            color=colour,
            linestyle=line,
            marker=marker,
            markevery=(STEPS - 1, max(STEPS, tasks // 10 * STEPS)),
            markersize=4,
            linewidth=1.3,
            label=f"{style.shown(label)}, {count} seed{'s' if count > 1 else ''}",
        )
        ax.fill_between(one.times, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
    style.mark_boundaries(ax, range(1, tasks))
    style.clean(ax)
    ax.set_xlim(0, tasks)
    ax.set_ylim(0, 102)
    ax.set_xticks(range(0, tasks + 1, max(1, tasks // 10)))
    ax.set_xlabel("tasks learned", fontsize=9)
    ax.set_ylabel("validation accuracy on all tasks so far (%)", fontsize=9)
    ax.set_title(f"{benchmark}: mean, and one standard deviation", loc="left", fontsize=10)
    ax.legend(**LEGEND, handlelength=4)
    return figure
