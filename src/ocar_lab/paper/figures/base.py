"""A figure of the paper: its options, its numbers, and its pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ocar.errors import ConfigError
from ocar_lab.paper.figures.setup import Listen, Setup
from ocar_lab.paper.figures.store import Wanted, gather
from ocar_lab.paper.figures.style import save
from ocar_lab.tune.preset import read_preset


@dataclass(frozen=True, kw_only=True)
class PaperFigure(ABC):
    """A figure; its fields are the options of its command."""

    kind: ClassVar[type[Any]]  # the dataclass of a part

    out: Path = Path("results/figures")
    """Folder for the numbers and the pictures."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the file of numbers, without its ending."""

    @abstractmethod
    def wanted(self) -> Wanted:
        """The parts, and what they depend on."""

    @abstractmethod
    def make(self, part: str, listen: Listen) -> Any:
        """Make a part.

        Args:
            part: Its name.
            listen: Called with the progress.
        """

    @abstractmethod
    def draw(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The pictures as matplotlib figures, by the names of their files."""

    @property
    def file(self) -> Path:
        """The file of numbers."""
        return self.out / f"{self.name}.json"  # a name may have a point

    def produce(self, command: str, progress: Callable[[str], Listen]) -> list[Path]:
        """Make the missing parts, write them and draw the figure.

        Args:
            command: The command line, for the file.
            progress: Called with the name of each part before it is made; returns its listener.

        Returns:
            The files: numbers, then pictures.
        """

        def make(part: str) -> Any:
            return self.make(part, progress(part))

        parts = gather(self.file, self.wanted(), self.kind, make, command=command)
        saved = [save(figure, self.out / name) for name, figure in self.draw(parts).items()]
        return [self.file, *(path for paths in saved for path in paths)]


@dataclass(frozen=True, kw_only=True)
class RunFigure(PaperFigure):
    """A figure of runs."""

    benchmark: str = "split-digits"
    """The benchmark; the paper's is split-mnist, which needs MNIST."""

    seed: int = 0
    """Seed of the runs."""

    batches: int | None = None
    """Keep only so many batches of each task, from its start; all by default."""

    tasks: int | None = None
    """Keep only so many tasks; all by default."""

    preset: tuple[Path, ...] = ()
    """Files with the settings of methods, as ocar tune writes them."""

    data_root: Path | None = None
    """Folder of the data sets; by default OCAR_DATA or the user's data folder."""

    def setup(self) -> Setup:
        """What the runs have in common."""
        return Setup(
            benchmark=self.benchmark,
            seed=self.seed,
            batches=self.batches,
            tasks=self.tasks,
            presets=read_presets(self.preset, self.benchmark),
            data_root=self.data_root,
        )


def read_presets(paths: Sequence[Path], benchmark: str) -> dict[str, dict[str, Any]]:
    """Settings by method from preset files.

    Raises:
        ConfigError: A file is not a preset, is of another benchmark, or two are of one method.
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
