"""From lists of image files to a data set, through the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from ocar.datasets.arrays import Arrays
from ocar.datasets.cache import Entry, load_or_make, verify_cache
from ocar.datasets.finding import Finding, compare_md5
from ocar.datasets.pictures import Picture, decode_all
from ocar.errors import DataError

_DECODER = "shorter side, bilinear, centre crop, 1"  # to be changed when the pixels do


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """The image files of a data set; those of a domain side by side."""

    name: str
    """What the data set is called."""

    train: Sequence[Picture]
    """Pictures to train on."""

    test: Sequence[Picture]
    """Pictures to test on."""

    classes: tuple[str, ...]
    """What the labels mean."""

    domains: tuple[str, ...] = ()
    """What the domains are called, if there are any."""

    def load(self, size: int, cache: Path) -> Arrays:
        """The data set, with images of ``size`` × ``size`` pixels.

        Args:
            size: Height and width of the images.
            cache: The cache's folder.
        """
        for part, pictures in (("training", self.train), ("test", self.test)):
            if not pictures:
                raise DataError(f"{self.name} has no {part} images.")
        pictures = [*self.train, *self.test]
        entry = Entry(
            folder=cache,
            name=f"{self.name}-{size}",
            fingerprint=self.fingerprint(size),
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

    def fingerprint(self, size: int) -> str:
        """Of all that decides the pixels: the files, their order, how they are decoded."""
        digest = hashlib.sha256(f"{_DECODER}/{size}".encode())
        for picture in (*self.train, *self.test):
            digest.update(f"\0{picture.name}\0{picture.stamp}".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def check(self) -> str:
        """Decode every file.

        Returns:
            What is wrong with the first that is damaged; empty if none is.
        """
        try:
            for _ in decode_all([*self.train, *self.test], 1):
                pass
        except DataError as error:
            return str(error)
        return ""


def find_images(
    opened: AbstractContextManager[ImageSet],
    *,
    where: Path,
    archives: Mapping[Path, str | None],
    count: Callable[[ImageSet], str],
    cache: Path,
    deep: bool,
) -> Finding:
    """What is there of a data set of image files that has been found.

    Args:
        opened: Opens it.
        where: Its folder or archive.
        archives: The archives it is read from, with their published md5.
        count: Says what is missing, empty if nothing is.
        cache: The cache's folder.
        deep: Decode every file, and compare what is in the cache.
    """
    genuine, problem = compare_md5(archives, deep=deep)
    try:
        with opened as images:
            broken = count(images) or (images.check() if deep else "")
            name = images.name
    except DataError as error:
        broken, name = str(error), ""
    if deep and name:
        problem = verify_cache(cache, name) or problem
    return Finding(
        present=True, whole=not broken, genuine=genuine, where=where, problem=broken or problem
    )
