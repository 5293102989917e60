"""What is found of a data set, and whether it is what its publisher ships."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ocar.errors import DataError

_LARGE = 512 << 20  # files above it are hashed in a deep check only: md5 takes seconds for each


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is on the disk of one data set."""

    present: bool
    """Whether any of it is there."""

    whole: bool
    """Whether all of it is there."""

    where: Path
    """The folder or archive it was found in, or where its files should be put."""

    genuine: bool | None = None
    """Whether its files have the published checksums; None if there are none to compare."""

    problem: str = ""
    """What is wrong; empty if nothing is."""

    @staticmethod
    def missing(where: Path) -> Finding:
        """Nothing is there; ``where`` is where it belongs."""
        return Finding(present=False, whole=False, where=where)


def compare_md5(files: Mapping[Path, str | None], *, deep: bool) -> tuple[bool | None, str]:
    """Whether files are the published ones, by their md5.

    Args:
        files: The files with their published md5, None where none is known.
        deep: Hash large files too.

    Returns:
        True if every file is the published one, False if one is not, None if that cannot be
        said of all; and what is wrong, empty if nothing is.
    """
    unknown = False
    for path, published in files.items():
        try:
            if published is None or (path.stat().st_size > _LARGE and not deep):
                unknown = True
                continue
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "md5").hexdigest()
        except OSError as error:
            raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
        if digest != published:
            return False, f"{path} has md5 {digest}, the published file {published}."
    return (None if unknown or not files else True), ""
