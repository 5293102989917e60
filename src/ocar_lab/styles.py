"""The style of each method wherever it is drawn: colour, dashes and marker.

The colours are after Okabe and Ito, darker where white paper needs it, and can be distinguished by
the colour-blind. Two methods with the same colour differ in dashes and marker, and so do methods
that are often compared, so that a print in grey is legible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Marker = Literal[
    "circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star", "hexagon"
]


class Colour(NamedTuple):
    """A colour, as ``#rrggbb``."""

    light: str  # on white
    dark: str  # on black


class Style(NamedTuple):
    """The style of one method."""

    colour: Colour
    dashes: tuple[float, ...]  # dash, gap, dash, ... in widths of the line; solid if empty
    marker: Marker


BLACK = Colour("#000000", "#e8eaed")
ORANGE = Colour("#c98500", "#f0b040")
SKY = Colour("#2f93d1", "#8fd0f7")
GREEN = Colour("#008a64", "#2fc79a")
BLUE = Colour("#0072b2", "#56b4e9")
RED = Colour("#d55e00", "#ff8c42")
PURPLE = Colour("#b8508c", "#f08cc8")
VIOLET = Colour("#5b4fc4", "#b0a5ff")
GREY = Colour("#6b6b6b", "#a4abb6")

STYLES: dict[str, Style] = {
    "ocar": Style(BLUE, (), "circle"),
    "er": Style(RED, (5, 2), "square"),
    "er-iid": Style(BLACK, (1, 1.2), "diamond"),
    "ewc": Style(ORANGE, (6, 2, 1, 2), "triangle-down"),
    "ngd": Style(GREEN, (2, 1.5), "triangle-up"),
    "ocar-ace": Style(SKY, (8, 2), "cross"),
    "ocar-der++": Style(VIOLET, (4, 1, 1, 1), "x"),
    "ocar-slow": Style(GREEN, (14, 1.5), "star"),
    "er-ace": Style(PURPLE, (3, 1), "star"),
    "er-lwf": Style(GREY, (7, 3), "hexagon"),
    "mir": Style(GREEN, (9, 2, 2, 2), "square"),
    "rar": Style(ORANGE, (3, 3), "circle"),
    "der": Style(VIOLET, (1, 2.5), "diamond"),
    "der++": Style(PURPLE, (6, 1.5, 1.5, 1.5), "triangle-up"),
    "scr": Style(SKY, (2, 2), "triangle-down"),
    "ocm": Style(BLACK, (10, 2, 1, 2, 1, 2), "cross"),
    "onpro": Style(RED, (1, 3), "x"),
    "gdumb": Style(GREY, (2, 1, 4, 1), "star"),
    "agem": Style(BLUE, (4, 4), "hexagon"),
    "lpr": Style(GREEN, (12, 3), "x"),
}
"""By method; ``er-iid`` is ER with all classes in one task."""


def styles(labels: Sequence[str]) -> list[Style]:
    """The style of each line of a figure.

    A method has its own style. A label without one, and a label that repeats, take in turn the
    styles of methods that are not in the figure; if all are, all styles.
    """
    free = [style for name, style in STYLES.items() if name not in labels] or [*STYLES.values()]
    found: list[Style] = []
    others = 0
    for place, label in enumerate(labels):
        if label in STYLES and label not in labels[:place]:
            found.append(STYLES[label])
        else:
            found.append(free[others % len(free)])
            others += 1
    return found
