"""The picture of the README and of the first page, from stored runs.

    python docs/_tools/readme_picture.py

It draws ``docs/_static/accuracy-over-time.png``. Left: accuracy on the first two digits of
Split-MNIST while eight others come, from ``ocar paper landscape --benchmark split-mnist``. Right:
accuracy on everything so far of Split-CIFAR100 on the paper's splits, from ``ocar paper curves
--benchmark split-cifar100 --out results/figures/slow``. The file carries the sum of the numbers
that it was drawn from, and a test compares it with those that are stored.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pictures import write_picture

from ocar_lab.drawing import clean, mark_boundaries, method_styles, new_figure, shown

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "_static" / "accuracy-over-time.png"
FIGURES = ROOT / "results" / "figures"
METHODS = ("er", "ocar")
STYLES = method_styles(METHODS)


def read_numbers() -> dict[str, Any]:
    """What is drawn, by benchmark and method."""
    mnist, cifar = (
        json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))["parts"]
        for name in ("landscape-split-mnist", "slow/curves-split-cifar100")
    )
    return {
        "split-mnist": {
            method: {
                "times": mnist[method]["numbers"]["times"],
                "boundaries": mnist[method]["numbers"]["boundaries"],
                "first": [row[0] for row in mnist[method]["numbers"]["accuracies"]],
            }
            for method in METHODS
        },
        "split-cifar100": {
            method: {
                name: cifar[method]["numbers"][name] for name in ("times", "mean", "std", "tasks")
            }
            for method in METHODS
        },
    }


def falls(curve: Mapping[str, Any]) -> list[float]:
    """How far the accuracy on the first task falls after each boundary, before the next.

    Args:
        curve: One method on Split-MNIST.

    Returns:
        A part of 1 for each boundary but the end.
    """
    first, ends = curve["first"], curve["boundaries"]
    return [first[end] - min(first[end : after + 1]) for end, after in itertools.pairwise(ends)]


def draw(numbers: Mapping[str, Any]) -> Any:
    """The picture, as matplotlib's figure."""
    figure = new_figure(9.0, 3.3)
    left, right = figure.subplots(1, 2, sharey=True)
    for method in METHODS:
        colour, line, _ = STYLES[method]
        mnist, cifar = (numbers[name][method] for name in ("split-mnist", "split-cifar100"))
        name = shown(method)
        left.plot(mnist["times"], _per_cent(mnist["first"]), color=colour, ls=line, label=name)
        low, high = (
            [100 * (m + sign * s) for m, s in zip(cifar["mean"], cifar["std"], strict=True)]
            for sign in (-1, 1)
        )
        right.fill_between(cifar["times"], low, high, color=colour, alpha=0.2, linewidth=0)
        right.plot(cifar["times"], _per_cent(cifar["mean"]), color=colour, ls=line, lw=1.2)
    er, cifar = numbers["split-mnist"]["er"], numbers["split-cifar100"]["er"]
    mark_boundaries(left, [er["times"][place] for place in er["boundaries"][:-1]])
    mark_boundaries(right, range(1, cifar["tasks"]))
    _label(left, "The first two digits, while eight others come", "batches of Split-MNIST")
    _label(right, "All classes so far, 100 in the end", "tasks of Split-CIFAR100")
    left.set(ylabel="accuracy (%)", ylim=(0, 102), xlim=(0, er["times"][-1]))
    right.set(xlim=(0, cifar["tasks"]), xticks=range(0, cifar["tasks"] + 1, 5))
    left.legend(loc="lower left", fontsize=9)
    return figure


def _label(ax: Any, title: str, below: str) -> None:
    clean(ax)
    ax.set_title(title, loc="left", fontsize=10)
    ax.set_xlabel(below, fontsize=9)


def _per_cent(values: list[float]) -> list[float]:
    return [100 * value for value in values]


def main() -> None:
    """Draw it."""
    numbers = read_numbers()
    write_picture(PICTURE, draw(numbers), numbers)
    for method, curve in numbers["split-mnist"].items():
        points = ", ".join(f"{100 * fall:.0f}" for fall in falls(curve))
        print(f"{shown(method)} falls by {points} points after the boundaries")
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
