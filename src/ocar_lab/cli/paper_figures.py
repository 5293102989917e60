"""``ocar paper convex | landscape | grid | steps | spectrum | ratio``: the paper's figures.

Each writes its numbers to one file and draws them; what the file has is not made again.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ocar_lab.cli.arguments import parse
from ocar_lab.cli.paper_meter import Meter
from ocar_lab.cli.paper_options import (
    ConvexOptions,
    GridOptions,
    LandscapeOptions,
    Options,
    RatioOptions,
    SpectrumOptions,
    StepsOptions,
    read_presets,
)
from ocar_lab.experiment.parts import limited_threads
from ocar_lab.paper.figures import (
    convex,
    drawing,
    grid,
    landscape,
    landscape_drawing,
    ratio,
    spectrum,
    steps,
)
from ocar_lab.paper.figures.live import Listen, Setup
from ocar_lab.paper.figures.store import Wanted, gather
from ocar_lab.paper.figures.style import save

P = TypeVar("P")

PLACES = ("--out", "--results", "--data-root")
"""Options that say where files are and not what is in them."""

EVERY = 10
"""Batches between two numbers of the convex experiment that are kept."""


def main(name: str, arguments: list[str], *, debug: bool) -> int:
    """Make a figure of the paper."""
    options = parse(KINDS[name], arguments, command=f"ocar paper {name}")
    with limited_threads(1):  # more do not pay for models as small as these
        paths = make_figure(options, command_line(name, arguments))
    sys.stdout.writelines(f"{path}\n" for path in paths)
    return 0


KINDS: dict[str, type[Options]] = {
    "convex": ConvexOptions,
    "landscape": LandscapeOptions,
    "grid": GridOptions,
    "steps": StepsOptions,
    "spectrum": SpectrumOptions,
    "ratio": RatioOptions,
}


def make_figure(options: Options, command: str) -> list[Path]:
    """Make what is missing of a figure, write it and draw it.

    Args:
        options: Which figure, and how.
        command: What stands for them, for the file.

    Returns:
        The files: numbers, then pictures.
    """
    if isinstance(options, ConvexOptions):
        return _convex(options, command)
    if isinstance(options, LandscapeOptions):
        return _landscape(options, command)
    if isinstance(options, GridOptions):
        return _grid(options, command)
    if isinstance(options, SpectrumOptions):
        return _spectrum(options, command)
    if isinstance(options, RatioOptions):
        return _ratio(options, command)
    assert isinstance(options, StepsOptions)
    return _steps(options, command)


def command_line(name: str, arguments: Sequence[str]) -> str:
    """The command as it is kept: without the places of files.

    Args:
        name: The figure.
        arguments: What comes after it.
    """
    words, skip = ["ocar", "paper", name], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in PLACES:
            skip = True
        elif not argument.startswith(tuple(f"{place}=" for place in PLACES)):
            words.append(argument)
    return shlex.join(words)


def numbers_file(stem: Path) -> Path:
    """The file of numbers beside pictures; a name may have a point in it."""
    return stem.parent / f"{stem.name}.json"


def collect(
    stem: Path, wanted: Wanted, kind: type[P], make: Callable[[str, Listen], P]
) -> dict[str, P]:
    """The parts of a figure, telling of those that are made."""
    meter = Meter()
    found = gather(
        numbers_file(stem), wanted, kind, lambda name: make(name, meter), begin=meter.begin
    )
    meter.end()
    return found


def _convex(options: ConvexOptions, command: str) -> list[Path]:
    presets = read_presets(options.preset, "convex")
    setup = Setup(benchmark="convex", batches=options.batches, presets=presets)
    wanted = convex.wanted(setup, options.methods, options.seeds, every=EVERY, command=command)

    def make(name: str, listen: Listen) -> convex.Sums:
        method, seed = convex.split_name(name)
        return convex.run_sums(replace(setup, seed=seed), method, every=EVERY, listen=listen)

    stem = options.out / "convex"
    parts = collect(stem, wanted, convex.Sums, make)
    return [numbers_file(stem), *save(drawing.draw_convex(parts), stem)]


def _landscape(options: LandscapeOptions, command: str) -> list[Path]:
    setup = options.setup()
    sizes = landscape.Sizes(
        samples=options.samples,
        resolution=options.resolution,
        every=options.every,
        dense=options.dense,
    )
    wanted = landscape.wanted(setup, options.methods, sizes, command=command)

    def make(method: str, listen: Listen) -> landscape.Trajectory:
        return landscape.record_path(setup, method, sizes, listen=listen)

    stem = options.out / f"landscape-{options.benchmark}"
    parts = collect(stem, wanted, landscape.Trajectory, make)
    pictures = {
        stem: landscape_drawing.draw_surfaces(parts),
        options.out / f"landscape-tasks-{options.benchmark}": landscape_drawing.draw_all(parts),
        options.out / f"learning-{options.benchmark}": landscape_drawing.draw_learning(parts),
    }
    saved = [path for place, picture in pictures.items() for path in save(picture, place)]
    return [numbers_file(stem), *saved]


def _grid(options: GridOptions, command: str) -> list[Path]:
    setup = options.setup()
    selected = setup.config(grid.METHOD).resolve()[0].lr
    lrs = options.lrs or grid.centred(selected, 5, factor=10**0.5)
    pairs = {grid.cell_name(a, r): (a, r) for a in lrs for r in options.ratios}
    wanted = grid.wanted(setup, lrs, options.ratios, command=command)

    def make(name: str, listen: Listen) -> grid.Cell:
        return grid.run_cell(setup, *pairs[name], listen=listen)

    stem = options.out / f"grid-{options.benchmark}"
    parts = collect(stem, wanted, grid.Cell, make)
    return [numbers_file(stem), *save(drawing.draw_grid(parts), stem)]


def _steps(options: StepsOptions, command: str) -> list[Path]:
    pairs = {steps.line_name(a, t): (a, t) for a in options.lrs for t in options.taus}
    wanted = steps.wanted(options.lrs, options.taus, command=command)
    stem = options.out / "steps"
    parts = gather(
        numbers_file(stem), wanted, steps.Line, lambda name: steps.make_line(*pairs[name])
    )
    return [numbers_file(stem), *save(drawing.draw_steps(parts), stem)]


def _spectrum(options: SpectrumOptions, command: str) -> list[Path]:
    setup = options.setup()
    stem = options.out / f"spectrum-{options.benchmark}"
    wanted = spectrum.wanted(setup, command=command)
    (found,) = collect(
        stem, wanted, spectrum.Spectra, lambda _, listen: spectrum.run_spectra(setup, listen=listen)
    ).values()
    return [numbers_file(stem), *save(drawing.draw_spectrum(found), stem)]


def _ratio(options: RatioOptions, command: str) -> list[Path]:
    setup = options.setup()
    stem = options.out / f"ratio-{options.benchmark}"
    settings = ratio.ratio_settings(setup, options.lr, options.ema)
    wanted = ratio.wanted(setup, settings, command=command)
    (found,) = collect(
        stem,
        wanted,
        ratio.Ratios,
        lambda _, listen: ratio.run_ratios(setup, settings, listen=listen),
    ).values()
    return [numbers_file(stem), *save(drawing.draw_ratio(found), stem)]
