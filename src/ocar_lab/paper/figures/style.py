"""How every figure looks: methods as :mod:`ocar_lab.styles` has them, little else but the lines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from ocar.errors import MissingPackageError
from ocar_lab import styles as of

BLACK, ORANGE, GREEN, BLUE, RED, PURPLE = (
    colour.light for colour in (of.BLACK, of.ORANGE, of.GREEN, of.BLUE, of.RED, of.PURPLE)
)

Style = tuple[str, Any, str]
"""Colour, line and marker, as matplotlib has them."""

NAMES = {
    "er-iid": "ER, i.i.d.",
    "er-lwf": "ER + LwF",
    "agem": "A-GEM",
    "gdumb": "GDumb",
    "onpro": "OnPro",
}
"""Methods that are written in another way than in capitals."""

FORMATS = ("png", "pdf", "svg")


def method_styles(labels: Iterable[str]) -> dict[str, Style]:
    """The look of each label."""
    names = list(labels)
    return dict(zip(names, map(of.for_matplotlib, of.styles(names)), strict=True))


def shown(label: str) -> str:
    """A method as it is written in a figure."""
    method, space, settings = label.partition(" ")
    return NAMES.get(method, method.upper()) + space + settings


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches.

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
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def clean(ax: Any) -> None:
    """Leave out the frame where it says nothing."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


def mark_boundaries(ax: Any, places: Iterable[float]) -> None:
    """Thin vertical lines, behind everything."""
    for place in places:
        ax.axvline(place, color="0.75", linewidth=0.7, zorder=0)


def save(figure: Any, stem: Path, *, dpi: int = 150) -> list[Path]:
    """Write a figure as PNG, PDF and SVG, without dates, so that the same numbers give the same.

    Args:
        figure: The figure.
        stem: The files without their endings.
        dpi: Dots an inch, of the PNG and of what is a picture within the others.

    Returns:
        The files.
    """
    import matplotlib as mpl

    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context({"svg.hashsalt": "ocar", "svg.fonttype": "none", "pdf.fonttype": 42}):
        for kind in FORMATS:
            path = stem.parent / f"{stem.name}.{kind}"
            figure.savefig(path, dpi=dpi, metadata=metadata[kind])
            paths.append(path)
    _shrink(paths[FORMATS.index("png")])
    return paths


def _shrink(path: Path) -> None:
    """A PNG with 256 colours in place of millions, which these pictures do not need."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
