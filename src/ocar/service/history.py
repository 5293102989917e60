"""The checkpoints of a service: the newest to start from, and older ones to roll back to.

A file is ``checkpoint-GGG-NNNNNNNNNNNN.safetensors``: its generation, and the batches that the
learner in it has learned. The files of the journal have generations too. A repair and a rollback
begin a generation. First its checkpoints get their names, then its journal is written. That write
decides: the service reads the newest generation that has a journal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

from ocar.config import require
from ocar.errors import CheckpointError, ConfigError
from ocar.files import read_file, sync_folder, write_whole
from ocar.learner import Learner
from ocar.service import journal
from ocar.state import load_state

T = TypeVar("T")

NEEDED = 2
"""Checkpoints from which the journal goes on: if the newest is damaged, the one before it."""

_NAME = re.compile(r"checkpoint-(\d{3,})-(\d{12})\.safetensors")


class Saved(NamedTuple):
    """A checkpoint."""

    generation: int
    batches: int
    path: Path


class History:
    """The checkpoints in a folder that its user has locked; ``most`` of them, at least 2, are kept.

    What an interrupted rollback or repair has left is removed.
    """

    def __init__(self, folder: Path, *, most: int) -> None:
        require("history", most, most >= NEEDED, f"at least {NEEDED}")
        self.folder, self._most = folder, most
        self.generation, _ = journal.files(folder)
        _unlink(folder, _left_over(find(folder), self.generation))

    def restore(self, load: Callable[[Path], T]) -> T | None:
        """The newest checkpoint, or the one before it if that is damaged; None if there is none.

        Raises:
            CheckpointError: Both are damaged.
        """
        own = [saved for saved in find(self.folder) if saved.generation == self.generation]
        failure: CheckpointError | None = None
        for saved in reversed(own[-NEEDED:]):
            try:
                return load(saved.path)
            except CheckpointError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return None

    def save(self, learner: Learner) -> None:
        """Save the learner, and remove the oldest checkpoints."""
        learner.save(_path(self.folder, self.generation, learner.batches))
        _unlink(self.folder, find(self.folder)[: -self._most])

    def keep_newest(self) -> None:
        """Remove all checkpoints but the newest."""
        kept = find(self.folder)[-1].path
        others = [path for path in self.folder.glob("checkpoint-*") if path != kept]
        _unlink(self.folder, (Saved(0, 0, path) for path in others))


def find(folder: Path) -> list[Saved]:
    """All checkpoints in a folder, oldest first."""
    names = {path: _NAME.fullmatch(path.name) for path in folder.iterdir()}
    return sorted(Saved(int(m[1]), int(m[2]), path) for path, m in names.items() if m)


def find_whole(folder: Path, batches: int) -> Saved:
    """The checkpoint whose learner has learned this many batches.

    Raises:
        ConfigError: There is no such checkpoint.
        CheckpointError: It is damaged.
    """
    found = {saved.batches: saved for saved in find(folder)}
    if batches not in found:
        known = ", ".join(map(str, found)) or "none"
        raise ConfigError(f"There is no checkpoint after {batches} batches. There are: {known}.")
    load_state(found[batches].path)
    return found[batches]


def roll_back(folder: Path, saved: Saved) -> None:
    """Go back to a whole checkpoint: all that was learned and accepted after it is dropped."""
    begin_generation(folder, [saved])
    generation = journal.roll_back(folder, to=saved.batches)
    _unlink(folder, _left_over(find(folder), generation))
    journal.remove_others(folder)


def begin_generation(folder: Path, checkpoints: Iterable[Saved]) -> None:
    """Copy checkpoints into the next generation; it begins once its journal is written."""
    generation = journal.files(folder)[0] + 1
    for each in checkpoints:
        write_whole(_path(folder, generation, each.batches), read_file(each.path))


def _path(folder: Path, generation: int, batches: int) -> Path:
    return folder / f"checkpoint-{generation:03d}-{batches:012d}.safetensors"


def _left_over(found: list[Saved], generation: int) -> list[Saved]:
    """Those of a generation that never began, and older ones that a rollback has dropped."""
    first = min((s.batches for s in found if s.generation == generation), default=None)
    return [
        saved
        for saved in found
        if saved.generation > generation
        or (saved.generation < generation and first is not None and saved.batches >= first)
    ]


def _unlink(folder: Path, checkpoints: Iterable[Saved]) -> None:
    paths = [saved.path for saved in checkpoints]
    for path in paths:
        path.unlink(missing_ok=True)
    if paths:
        sync_folder(folder)
