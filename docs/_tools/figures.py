"""The pictures of the site, drawn from ``results/pictures/digits.json`` at every build.

Each is drawn twice, for a light and for a dark page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "results" / "pictures" / "digits.json"

THEMES = {"light": ("#333333", "#d0d0d0"), "dark": ("#d8d8d8", "#4a4a4a")}
"""Colour of text and lines, and of what stays in the background."""

ER, OCAR, GREEN = "#d9822b", "#2f81c7", "#3b9e5d"
NAMES = {"er": ("ER", ER), "ocar": ("OCAR", OCAR)}
MEASURES = {
    "new": ("new digits, when they end", GREEN),
    "old": ("old digits, at the end", OCAR),
    "lowest": ("old digits, at their worst", ER),
}


def draw_all(docs: Path) -> None:
    """Draw every picture.

    Args:
        docs: The folder of the documentation.
    """
    mpl.use("svg")
    folder = docs / "_generated" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    numbers = json.loads(SOURCE.read_text(encoding="utf-8"))
    for theme, (ink, pale) in THEMES.items():
        with mpl.rc_context(_style(ink)):
            for name, draw in PICTURES.items():
                figure = draw(numbers, ink, pale)
                figure.savefig(folder / f"{name}-{theme}.svg", metadata={"Date": None})


def _style(ink: str) -> Any:
    return {
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": ink,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "figure.constrained_layout.use": True,
        "font.size": 9,
        "legend.frameon": False,
        "legend.labelcolor": ink,
        "savefig.transparent": True,
        "svg.fonttype": "path",
        "svg.hashsalt": "ocar",
        "text.color": ink,
        "xtick.color": ink,
        "ytick.color": ink,
    }


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def draw_gap(numbers: Mapping[str, Any], ink: str, pale: str) -> Figure:
    """Accuracy on the first two digits over time."""
    figure, (axes,) = _figure(7.2, 3.2)
    for method, (name, colour) in NAMES.items():
        curve = numbers["curves"][method]
        places = range(1, len(curve["first"]) + 1)
        low, high = (_per_cent(curve[f"first_{end}"]) for end in ("lowest", "highest"))
        axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(places, _per_cent(curve["first"]), color=colour, label=name)
    tasks = numbers["curves"]["er"]["task"]
    for place in (i for i in range(1, len(tasks)) if tasks[i] != tasks[i - 1]):
        axes.axvline(place + 0.5, color=pale, linewidth=1, zorder=0)
    axes.set(
        xlabel="stream batches; a line where two other digits begin",
        ylabel="test accuracy, %",
        title="Accuracy on the first two digits",
        xlim=(1, len(tasks)),
        ylim=(0, 102),
    )
    axes.legend(loc="lower left")
    return figure


def draw_curvature(numbers: Mapping[str, Any], ink: str, pale: str) -> Figure:
    """The spectrum of the curvature, and what a step makes of it."""
    figure, (left, right) = _figure(7.2, 3.0, 2)
    pairs = [(rank, value) for rank, value in numbers["spectrum"] if value > 1e-10]
    ranks, values = ([pair[side] for pair in pairs] for side in (0, 1))
    alpha = tau = numbers["preset"]["lr"]
    left.loglog(ranks, values, color=OCAR)
    left.axhline(tau, color=ER, linewidth=1.2)
    left.text(1.2, tau * 1.6, "τ", color=ER)
    left.set(xlabel="eigenvalue, largest first", ylabel="σ", title="Curvature of the network")
    right.loglog(values, [alpha / (v + tau) for v in values], ".", color=OCAR, markersize=3)
    right.axhline(1.0, color=pale, linewidth=1)
    right.axvline(tau, color=ER, linewidth=1.2)
    right.text(tau * 1.6, 0.9 * alpha / (max(values) + tau), "τ", color=ER)
    right.set(xlabel="σ", ylabel="α / (σ + τ)", title="Step size along an eigenvector")
    return figure


def draw_settings(numbers: Mapping[str, Any], ink: str, pale: str) -> Figure:
    """What α, τ and λ do to the new and to the old."""
    figure, axes = _figure(7.2, 3.1, 3)
    preset = numbers["preset"]
    classes = max(row["n_new"] for row in numbers["lambda"])
    panels = (
        ("alpha", [row["lr"] for row in numbers["alpha"]], "α, with τ fixed", preset["lr"]),
        ("tau", [row["tau"] for row in numbers["tau"]], "τ, with α fixed", preset["lr"]),
        (
            "lambda",
            [classes / row["n_new"] for row in numbers["lambda"]],
            "weight of replayed samples",
            classes / preset["n_new"],
        ),
    )
    for place, (axis, (key, x, label, chosen)) in enumerate(zip(axes, panels, strict=True)):
        axis.set(xlabel=label, ylim=(0, 104), xscale="log")
        _panel(axis, numbers[key], x)
        axis.axvline(chosen, color=pale, linewidth=1, zorder=0)
        axis.minorticks_off()
        if place == 0:
            axis.set_ylabel("test accuracy, %")
        else:
            axis.set_yticklabels([])
        if key != "lambda":
            ticks = x[::2]
            axis.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
    ticks = [classes / row["n_new"] for row in numbers["lambda"]]
    axes[2].set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4)
    return figure


def _panel(axis: Axes, rows: Sequence[Mapping[str, Any]], x: Sequence[float]) -> None:
    failed = [at for at, row in zip(x, rows, strict=True) if row["diverged"]]
    if failed:
        axis.plot(failed, [3] * len(failed), "x", color="#c23b3b", label="diverged", markersize=5)
    for measure, (name, colour) in MEASURES.items():
        there = [(at, row[measure]) for at, row in zip(x, rows, strict=True) if measure in row]
        axis.errorbar(
            [at for at, _ in there],
            _per_cent([found["mean"] for _, found in there]),
            _per_cent([found["std"] for _, found in there]),
            color=colour,
            label=name,
            marker="o",
            markersize=3,
            linewidth=1.4,
            elinewidth=0.8,
        )


def _per_cent(values: Sequence[float]) -> list[float]:
    return [100 * value for value in values]


PICTURES: dict[str, Callable[[Mapping[str, Any], str, str], Figure]] = {
    "stability-gap": draw_gap,
    "curvature": draw_curvature,
    "settings": draw_settings,
}
"""How each is drawn, by name."""
