"""A figure of the paper: its options, its numbers, and its pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ocar_lab.drawing import save
from ocar_lab.experiment import RunConfig
from ocar_lab.paper.figures.setup import Listen, Setup
from ocar_lab.paper.figures.store import Wanted, gather


@dataclass(frozen=True, kw_only=True)
class PaperFigure(ABC):
    """A figure; its fields are the options of its command."""

    title: ClassVar[str]  # name of the command
    kind: ClassVar[type[Any]]  # the dataclass of a part

    out: Path = Path("results/figures")
    """Folder for the numbers and the pictures."""

    @abstractmethod
    def wanted(self) -> Wanted:
        """The parts, and what they depend on."""

    @abstractmethod
    def make(self, part: str, listen: Listen) -> Any:
        """Make a part by its name."""

    @abstractmethod
    def draw(self, parts: Mapping[str, Any]) -> Any:
        """Draw the parts as a figure of matplotlib."""

    @property
    def name(self) -> str:
        """Name of the files, without their endings."""
        return self.title

    def pictures(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The pictures by the names of their files."""
        return {self.name: self.draw(parts)}

    def produce(self, command: str, progress: Callable[[str], Listen]) -> list[Path]:
        """Make the missing parts, write them and draw the figure; the files, numbers first.

        ``progress`` is called with each part's name before it is made, and returns its listener;
        the command line is for the file.
        """
        file = self.out / f"{self.name}.json"  # a name may have a point
        parts = gather(
            file,
            self.wanted(),
            self.kind,
            lambda part: self.make(part, progress(part)),
            command=command,
        )
        saved = [save(figure, self.out / name) for name, figure in self.pictures(parts).items()]
        return [file, *(path for paths in saved for path in paths)]


@dataclass(frozen=True, kw_only=True)
class RunFigure(Setup, PaperFigure):
    """A figure of runs on one benchmark."""

    @property
    def name(self) -> str:
        """Name of the files, without their endings."""
        return f"{self.title}-{self.benchmark}"

    @abstractmethod
    def configs(self) -> dict[str, RunConfig]:
        """The run of each part."""

    def wanted(self) -> Wanted:
        """The runs, and what they have in common."""
        parts = {name: self.describe_run(config) for name, config in self.configs().items()}
        return Wanted(settings=self.describe(), parts=parts)
