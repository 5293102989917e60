"""Data sets of image files: decode them to one size, through the cache."""

from __future__ import annotations

import hashlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import UnidentifiedImageError

from ocar.config import require
from ocar.datasets.archives import Folder, Tree, Zip, locate_tree
from ocar.datasets.arrays import Arrays
from ocar.datasets.base import DataSet
from ocar.datasets.cache import CACHE, Entry, load_or_make
from ocar.datasets.decoding import DECODER, FORMATS, decode
from ocar.errors import DataError

_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Picture:
    """One image file."""

    tree: Tree  #: The folder or archive with the file.
    name: str  #: Its name there.
    stamp: str  #: Changes with its content.
    label: int
    domain: int = 0


def is_picture(name: str) -> bool:
    """Whether a file is an image by its name."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES  # noqa: PTH122 a name, not a path


def decode_all(pictures: Sequence[Picture], size: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Pixels ``(3, size, size)`` of each picture in turn, decoded by several threads.

    Raises:
        DataError: A file cannot be read or is no image; it is named.
    """
    require("size", size, size >= 1, "at least 1")
    # As many threads as torch may use, so that one setting limits both.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for start in range(0, len(pictures), _CHUNK):
            chunk = pictures[start : start + _CHUNK]
            yield from pool.map(_decode_one, chunk, itertools.repeat(size))


def _decode_one(picture: Picture, size: int) -> npt.NDArray[np.uint8]:
    data = picture.tree.read(picture.name)
    try:
        return decode(data, size)
    except Exception as error:  # a damaged image can raise anything
        where = picture.tree.locate(picture.name)
        reason: object = error
        if isinstance(error, UnidentifiedImageError):  # its message names our buffer
            reason = f"it is none of {', '.join(FORMATS)}"
        raise DataError(f"Cannot read {where} as an image: {reason}.") from error


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """The image files of a data set; the files of a domain are contiguous."""

    name: str  #: Name of the data set.
    train: Sequence[Picture]
    test: Sequence[Picture]
    classes: tuple[str, ...]  #: Name of each label.
    domains: tuple[str, ...] = ()  #: Name of each domain; empty without domains.
    missing: str = ""  #: What the published set has and these files have not; empty if nothing.

    def load(self, size: int, cache: Path) -> Arrays:
        """The data set, with images of ``size`` × ``size`` pixels, through the folder ``cache``."""
        if not self.train or not self.test:
            part = "test" if self.train else "training"
            raise DataError(f"{self.name} has no {part} images.")
        pictures = [*self.train, *self.test]
        # All that decides the pixels: the files, their order, how they are decoded.
        digest = hashlib.sha256(f"{DECODER}/{size}".encode())
        for picture in pictures:
            digest.update(f"\0{picture.name}\0{picture.stamp}".encode("utf-8", "surrogateescape"))
        entry = Entry(
            folder=cache,
            name=f"{self.name}-{size}",
            fingerprint=digest.hexdigest(),
            shape=(len(pictures), 3, size, size),
        )
        x = torch.from_numpy(load_or_make(entry, lambda: decode_all(pictures, size)))
        y, domain = (
            torch.tensor([getattr(picture, field) for picture in pictures], dtype=torch.int64)
            for field in ("label", "domain")
        )
        split = len(self.train)
        return Arrays(
            name=self.name,
            x_train=x[:split],
            y_train=y[:split],
            x_test=x[split:],
            y_test=y[split:],
            domain_train=domain[:split] if self.domains else None,
            domain_test=domain[split:] if self.domains else None,
            classes=self.classes,
            domains=self.domains,
        )


@dataclass(frozen=True, kw_only=True)
class ImageFiles(DataSet):
    """A data set of image files, decoded through the cache in the data root."""

    name: str
    how_to_get: str
    size: int  #: Default height and width of the images.
    #: By title of a part: the folders that may hold it, each with the zip of it.
    places: Mapping[str, Mapping[str, str]]
    md5: Mapping[str, str]  #: Published checksums of the zips.
    list_files: Callable[..., ImageSet]  #: From the folder or zip of each part to the files.

    def load(self, root: Path, *, size: int | None = None) -> Arrays:
        """Read it from the data root; warn if that has not all of it."""
        with self._open(root) as images:
            if images.missing:
                warnings.warn(
                    f"{self.name} in {root}: {images.missing} Compare results on it with each "
                    "other only.",
                    stacklevel=2,
                )
            return images.load(self.size if size is None else size, root / CACHE)

    @contextmanager
    def _open(self, root: Path) -> Iterator[ImageSet]:
        """List its files; they can be read within the context."""
        with ExitStack() as stack:
            trees = []
            for title, places in self.places.items():
                where, top = self._place(root, places, title=title)
                trees.append(stack.enter_context(Zip(where, top=top) if top else Folder(where)))
            yield self.list_files(*trees)

    def _locate(self, root: Path) -> tuple[Path, dict[Path, str | None]]:
        found = [locate_tree(root, places) for places in self.places.values()]
        files = {place[0]: self.md5.get(place[0].name) for place in found if place is not None}
        folder = next(iter(next(iter(self.places.values()))))
        return next(iter(files), root / folder), files

    def _examine(self, root: Path, *, deep: bool, genuine: bool | None) -> str:
        with self._open(root) as images:
            if deep and not images.missing:
                for _ in decode_all([*images.train, *images.test], 1):
                    pass
            return images.missing
