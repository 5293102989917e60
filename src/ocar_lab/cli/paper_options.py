"""What the figures of the paper can be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocar.errors import ConfigError
from ocar_lab.paper.figures import convex, landscape
from ocar_lab.paper.figures.live import Setup
from ocar_lab.tune.preset import read_preset


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every figure can be asked for."""

    out: Path = Path("results/figures")
    """Folder for the numbers and the pictures."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """What a figure of runs can be asked for."""

    benchmark: str = "split-digits"
    """The benchmark; the paper's is split-mnist, which needs MNIST."""

    seed: int = 0
    """Seed of the runs."""

    batches: int | None = None
    """Keep so many batches of each task, from its start; all by default."""

    tasks: int | None = None
    """Keep so many tasks; all by default."""

    preset: tuple[Path, ...] = ()
    """Files with the settings of methods, as ocar tune writes them."""

    data_root: Path | None = None
    """Where the data sets are; by default OCAR_DATA or the user's data folder."""

    def setup(self) -> Setup:
        """Where the runs are made."""
        return Setup(
            benchmark=self.benchmark,
            seed=self.seed,
            batches=self.batches,
            tasks=self.tasks,
            presets=read_presets(self.preset, self.benchmark),
            data_root=self.data_root,
        )


@dataclass(frozen=True, kw_only=True)
class ConvexOptions(Options):
    """L_p and L_s over time on the convex stream, mean and spread over seeds."""

    seeds: tuple[int, ...] = tuple(range(10))
    """Seeds; one run each of every method."""

    methods: tuple[str, ...] = convex.METHODS
    """The methods."""

    batches: int | None = None
    """Keep so many batches of each task, from its start; all by default."""

    preset: tuple[Path, ...] = ()
    """Files with the settings of methods, as ocar tune convex METHOD writes them."""


@dataclass(frozen=True, kw_only=True)
class LandscapeOptions(RunOptions):
    """The path of each method through the loss landscape, and its learning curves.

    Three pictures: the loss of the first two tasks and of the mean, as in the paper's text; that
    of every task; and the accuracy on every task over time.
    """

    methods: tuple[str, ...] = ("er", "ocar")
    """The methods."""

    samples: int = landscape.Sizes.samples
    """Most test samples of each task."""

    resolution: int = landscape.Sizes.resolution
    """Points of the plane in each direction."""

    every: int = landscape.Sizes.every
    """Batches between two points of the path."""

    dense: int = landscape.Sizes.dense
    """After a boundary, each of so many batches is a point of the path."""


@dataclass(frozen=True, kw_only=True)
class GridOptions(RunOptions):
    """OCAR over α and α/τ: average accuracy, forgetting of the first task, accuracy on the last.

    τ does not grow here.
    """

    lrs: tuple[float, ...] = ()
    """Values of α; by default five around the selected one, each √10 times the one before."""

    ratios: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """Values of α/τ."""


@dataclass(frozen=True, kw_only=True)
class StepsOptions(Options):
    """The effective step size α / (σ + τ) against the eigenvalue σ; needs no run."""

    lrs: tuple[float, ...] = (1e-3, 1e-2)
    """Values of α."""

    taus: tuple[float, ...] = (1e-5, 1e-3, 1e-1)
    """Values of τ."""


@dataclass(frozen=True, kw_only=True)
class SpectrumOptions(RunOptions):
    """The eigenvalues of OCAR's damped curvature on a run, at the end of each task."""


@dataclass(frozen=True, kw_only=True)
class RatioOptions(RunOptions):
    """‖preconditioned gradient‖ / ‖gradient‖ over the stream with τ = α/100."""

    lr: float | None = None
    """α; by default the selected one, with which so small a τ may diverge."""

    ema: float | None = None
    """Weight of a new estimate in the average of the curvature; by default the selected one."""


@dataclass(frozen=True, kw_only=True)
class CurvesOptions(Options):
    """Validation accuracy over time, mean and standard deviation over seeds, from stored runs.

    Runs that are missing are made first. Numbers that were kept are drawn again without the runs.
    """

    benchmark: str = "split-digits"
    """The benchmark."""

    methods: tuple[str, ...] = ("er", "ocar")
    """The methods; er-iid is ER with all classes in one task."""

    seeds: tuple[int, ...] = ()
    """Seeds; by default all that are stored, or 0 where there are none."""

    results: Path = Path("runs")
    """A folder with run folders in it, at any depth; missing runs go there too."""

    data_root: Path | None = None
    """Where the data sets are; by default OCAR_DATA or the user's data folder."""

    workers: int | None = None
    """Runs side by side, if any are to be made; by default one for each core."""


def read_presets(paths: Sequence[Path], benchmark: str) -> dict[str, dict[str, Any]]:
    """Settings by method from preset files.

    Raises:
        ConfigError: A file is no preset, is of another benchmark, or two are of one method.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        preset = read_preset(path)
        if preset.benchmark != benchmark or preset.transform is not None:
            raise ConfigError(
                f"Invalid --preset {path}: it is for {preset.name} on {preset.benchmark}. "
                f"Must be for a method on {benchmark}."
            )
        if preset.method in found:
            raise ConfigError(f"Invalid --preset {path}: another file is for {preset.method} too.")
        found[preset.method] = dict(preset.settings)
    return found
