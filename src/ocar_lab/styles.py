"""How a method looks wherever it is drawn: the same in figures and in reports.

The colours are after Okabe and Ito, darker where white paper needs it, and are told apart by the
colour-blind. Two methods of one colour differ in dashes and marker, and so do any two of those that
are compared most often, so that a print in grey is legible too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

Marker = Literal[
    "circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star", "hexagon"
]


class Colour(NamedTuple):
    """A colour, as ``#rrggbb``."""

    light: str
    """On white."""

    dark: str
    """On black."""


class Look(NamedTuple):
    """Of one method."""

    colour: Colour
    """The colour."""

    dashes: tuple[float, ...]
    """Lengths of dash, gap, dash, ... in widths of the line; a solid line if empty."""

    marker: Marker
    """The marker."""


_MARKERS: dict[Marker, str] = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "cross": "P",
    "x": "X",
    "star": "*",
    "hexagon": "h",
}

BLACK = Colour("#000000", "#e8eaed")
ORANGE = Colour("#c98500", "#f0b040")
SKY = Colour("#2f93d1", "#8fd0f7")
GREEN = Colour("#008a64", "#2fc79a")
BLUE = Colour("#0072b2", "#56b4e9")
RED = Colour("#d55e00", "#ff8c42")
PURPLE = Colour("#b8508c", "#f08cc8")
VIOLET = Colour("#5b4fc4", "#b0a5ff")
GREY = Colour("#6b6b6b", "#a4abb6")

LOOKS: dict[str, Look] = {
    "ocar": Look(BLUE, (), "circle"),
    "er": Look(RED, (5, 2), "square"),
    "er-iid": Look(BLACK, (1, 1.2), "diamond"),
    "ewc": Look(ORANGE, (6, 2, 1, 2), "triangle-down"),
    "ngd": Look(GREEN, (2, 1.5), "triangle-up"),
    "ocar-ace": Look(SKY, (8, 2), "cross"),
    "ocar-der++": Look(VIOLET, (4, 1, 1, 1), "x"),
    "er-ace": Look(PURPLE, (3, 1), "star"),
    "er-lwf": Look(GREY, (7, 3), "hexagon"),
    "mir": Look(GREEN, (9, 2, 2, 2), "square"),
    "rar": Look(ORANGE, (3, 3), "circle"),
    "der": Look(VIOLET, (1, 2.5), "diamond"),
    "der++": Look(PURPLE, (6, 1.5, 1.5, 1.5), "triangle-up"),
    "scr": Look(SKY, (2, 2), "triangle-down"),
    "ocm": Look(BLACK, (10, 2, 1, 2, 1, 2), "cross"),
    "onpro": Look(RED, (1, 3), "x"),
    "gdumb": Look(GREY, (2, 1, 4, 1), "star"),
    "agem": Look(BLUE, (4, 4), "hexagon"),
    "lpr": Look(GREEN, (12, 3), "x"),
}
"""Of each method, and of the reference with all classes in one task."""


def looks(labels: Sequence[str]) -> list[Look]:
    """The look of each line of a figure.

    A method has its own. What has none, and the second line of a method and those after it, take
    in turn those of methods that are not in the figure, and once there are none left all of them.

    Args:
        labels: Names of the methods, which may repeat.
    """
    free = [look for label, look in LOOKS.items() if label not in labels] or list(LOOKS.values())
    found: list[Look] = []
    met: set[str] = set()
    others = 0
    for label in labels:
        if label in LOOKS and label not in met:
            found.append(LOOKS[label])
        else:
            found.append(free[others % len(free)])
            others += 1
        met.add(label)
    return found


def for_matplotlib(look: Look) -> tuple[str, Any, str]:
    """Colour on white, line and marker, as matplotlib calls them."""
    return look.colour.light, (0, look.dashes) if look.dashes else "-", _MARKERS[look.marker]
