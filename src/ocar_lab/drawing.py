"""Figures by matplotlib, in the styles of :mod:`ocar_lab.styles` and in three formats."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from ocar.files import new_file
from ocar_lab import styles
from ocar_lab.optional import needed

BLACK, ORANGE, GREEN, BLUE, RED, PURPLE = (
    getattr(styles, name).light for name in ("BLACK", "ORANGE", "GREEN", "BLUE", "RED", "PURPLE")
)

COLOURS = (BLUE, RED, GREEN, PURPLE)
"""For lines that are no methods."""

LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": True, "framealpha": 1, "edgecolor": "0.8"}

NAMES = {
    "er-iid": "ER, i.i.d.",
    "er-lwf": "ER + LwF",
    "agem": "A-GEM",
    "gdumb": "GDumb",
    "onpro": "OnPro",
}
"""Methods that are not written in capitals."""

FORMATS = ("png", "pdf", "svg")


Line = tuple[str, Any, str]
"""Colour on white, dashes and marker, as matplotlib names them."""

MARKERS: dict[styles.Marker, str] = {
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


def method_styles(labels: Iterable[str]) -> dict[str, Line]:
    """The style of each label."""
    names = list(labels)
    return {
        name: (own.colour.light, (0, own.dashes) if own.dashes else "-", MARKERS[own.marker])
        for name, own in zip(names, styles.styles(names), strict=True)
    }


def shown(label: str) -> str:
    """A method as it is written in a figure."""
    method, space, settings = label.partition(" ")
    return NAMES.get(method, method.upper()) + space + settings


def new_figure(width: float, height: float) -> Any:
    """An empty figure; sizes are in inches.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    with needed("A figure", "matplotlib", extra="paper"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def clean(ax: Any, *, title: str = "", x: str = "", y: str = "") -> None:
    """Remove the upper and right side of the frame; write the title and the axes' names."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    if title:
        ax.set_title(title, loc="left", fontsize=10)
    if x:
        ax.set_xlabel(x, fontsize=9)
    if y:
        ax.set_ylabel(y, fontsize=9)


def mark_boundaries(ax: Any, places: Iterable[float]) -> None:
    """Draw thin vertical lines, behind everything."""
    for place in places:
        ax.axvline(place, color="0.75", linewidth=0.7, zorder=0)


def draw_band(
    ax: Any, times: Any, mean: Any, ends: tuple[Any, Any], *, alpha: float = 0.2, **line: Any
) -> None:
    """Draw a line, ``(n,)``, and a band from the lower to the upper of its ends, ``(n,)`` each.

    ``line`` are properties of the line, its ``color`` among them; ``alpha`` is the band's opacity.
    """
    ax.plot(times, mean, **line)
    ax.fill_between(times, *ends, color=line["color"], alpha=alpha, linewidth=0)


def save(figure: Any, stem: Path, *, dpi: int = 150) -> list[Path]:
    """Write a figure as PNG, PDF and SVG, without dates: the same numbers give the same files.

    ``stem`` is the files without their endings; the PNG and raster images in the others have
    ``dpi`` dots per inch.
    """
    import matplotlib as mpl

    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.parent / f"{stem.name}.{kind}" for kind in FORMATS]  # a name may have a point
    with mpl.rc_context({"svg.hashsalt": "ocar", "svg.fonttype": "none", "pdf.fonttype": 42}):
        for path, kind in zip(paths, FORMATS, strict=True):
            with new_file(path) as file:
                figure.savefig(file, format=kind, dpi=dpi, metadata=metadata[kind])
    with Image.open(paths[0]) as picture:  # these pictures need 256 colours, not millions
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    with new_file(paths[0]) as file:
        small.save(file, "PNG", optimize=True)
    return paths
