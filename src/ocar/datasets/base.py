"""A data set by name: how it is read, and whether its files are complete and genuine."""

from __future__ import annotations

import hashlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ocar.datasets.archives import locate_tree, reading
from ocar.datasets.arrays import Arrays
from ocar.datasets.cache import CACHE, verify_cache
from ocar.errors import DataError, MissingPackageError
from ocar.files import open_regular

_LARGE = 512 << 20  # larger files are hashed in a deep check only: md5 takes seconds


def data_root() -> Path:
    """The folder with the data sets: ``OCAR_DATA``, else the platform's folder for user data."""
    given = os.environ.get("OCAR_DATA")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "ocar"


@dataclass(frozen=True, kw_only=True)
class DataStatus:
    """The state of one data set under a data root."""

    name: str  #: Name of the data set.
    present: bool  #: Whether any of its files exist.
    whole: bool  #: Whether all of its files exist and, after a deep check, can be read.
    genuine: bool | None  #: Whether the files have the published md5; None if not known.
    where: Path  #: The folder or archive that holds it, or should.
    how_to_get: str  #: Where to get it and where to put it.
    problem: str = ""  #: What is wrong; empty if nothing is.


class DataSet(ABC):
    """A data set that can be read by name: where its files are, how they are read and checked."""

    name: str
    how_to_get: str
    counts: tuple[int, int]  #: Training and test samples of the whole set.

    @abstractmethod
    def load(self, root: Path) -> Arrays:
        """Read it from the data root."""

    @abstractmethod
    def _locate(self, root: Path) -> tuple[Path, dict[Path, str | None]]:
        """Its place, and the files found there with their published md5; no files if missing."""

    def _examine(self, root: Path, *, deep: bool, genuine: bool | None) -> str:
        """What is missing or damaged; empty if nothing is. A deep check reads everything."""
        if genuine and not deep:
            return ""
        arrays = self.load(root)
        counts = len(arrays.x_train), len(arrays.x_test)
        return "" if counts == self.counts else f"It has {counts} images. Must be {self.counts}."

    def _place(
        self, root: Path, places: Mapping[str, str], *, title: str, wanted: Collection[str] = ()
    ) -> tuple[Path, str]:
        """As :func:`locate_tree`; raise if none of the places exists."""
        found = locate_tree(root, places, wanted=wanted)
        if found is None:
            folder, archive = (root / path for path in next(iter(places.items())))
            raise DataError(f"No {title}: neither {folder} nor {archive}. {self.how_to_get}")
        return found

    def find(self, root: Path, *, deep: bool = False) -> DataStatus:
        """The state of its files; a deep check reads everything, the cache included."""
        where, present, broken, problem = root, False, "", ""
        genuine: bool | None = None
        try:
            where, files = self._locate(root)
            present = bool(files)
            if present:
                genuine, problem = compare_md5(files, deep=deep)
                try:
                    broken = self._examine(root, deep=deep, genuine=genuine)
                except (DataError, MissingPackageError) as error:
                    broken = str(error)
                stale = verify_cache(root / CACHE, self.name) if deep else ""
                problem = broken or stale or problem
        except DataError as error:
            where, present, problem = root, False, str(error)
        return DataStatus(
            name=self.name,
            present=present,
            whole=present and not broken,
            genuine=genuine,
            where=where,
            how_to_get=self.how_to_get,
            problem=problem,
        )


def compare_md5(files: Mapping[Path, str | None], *, deep: bool) -> tuple[bool | None, str]:
    """Whether files have their published md5, None if it is not known; large ones only if ``deep``.

    Returns:
        True, False, or None if that is not known; and what is wrong, empty if nothing is.
    """
    unknown = False
    for path, published in files.items():
        with reading(path):
            if published is None or (path.stat().st_size > _LARGE and not deep):
                unknown = True
                continue
            with open_regular(path) as file:
                digest = hashlib.file_digest(file, "md5").hexdigest()
        if digest != published:
            return False, f"{path} has md5 {digest}, the published file {published}."
    return (None if unknown or not files else True), ""
