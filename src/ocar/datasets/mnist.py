"""MNIST and Fashion-MNIST, from their four IDX files each.

They are read from the published files every time: unpacking 11 to 30 MB takes half a second,
not worth a cache that has to be kept and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ocar.datasets.arrays import Arrays, Labelled, from_numpy
from ocar.datasets.finding import Finding, compare_md5
from ocar.datasets.idx import read_idx
from ocar.datasets.paths import is_file
from ocar.errors import DataError

_PARTS = {"train": 60_000, "t10k": 10_000}
_FILES = tuple(f"{part}-{kind}-ubyte" for part in _PARTS for kind in ("images-idx3", "labels-idx1"))

_CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class IdxSet:
    """A data set of the MNIST kind: which files it has and where they are."""

    name: str
    """What the data set is called."""

    title: str
    """The same, written out."""

    folders: tuple[str, ...]
    """Folders under the data root to look in, the proper one first."""

    classes: tuple[str, ...]
    """What the labels mean."""

    md5: Mapping[str, str]
    """Published checksums by file name."""

    url: str
    """Where the files can be had."""

    @property
    def how_to_get(self) -> str:
        """Where to get the files and where to put them."""
        names = ", ".join(f"{name}.gz" for name in _FILES)
        return f"Put {names} from {self.url} in {self.folders[0]}."

    def find_file(self, root: Path, name: str) -> Path | None:
        """The file called ``name``, unpacked or gzipped."""
        for folder in self.folders:
            for path in (root / folder / name, root / folder / f"{name}.gz"):
                if is_file(path):
                    return path
        return None

    def load(self, root: Path) -> Arrays:
        """The whole data set."""
        train, test = (self._part(root, part) for part in _PARTS)
        return from_numpy(self.name, train, test, classes=self.classes)

    def _part(self, root: Path, part: str) -> Labelled:
        paths = []
        for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
            path = self.find_file(root, name)
            if path is None:
                raise DataError(
                    f"No {self.title} file {name} or {name}.gz in {root / self.folders[0]}. "
                    f"{self.how_to_get}"
                )
            paths.append(path)
        x, y = (read_idx(path) for path in paths)
        if x.ndim != 3:
            raise DataError(f"{paths[0]} holds an array of shape {x.shape}. Must be (n, h, w).")
        if y.shape != x.shape[:1]:
            raise DataError(f"{paths[1]} has shape {y.shape}. Must be ({len(x)},), as {paths[0]}.")
        if y.max(initial=0) >= len(self.classes):
            raise DataError(f"{paths[1]} has label {y.max()}. Must be 0..{len(self.classes) - 1}.")
        return x[:, None], y.astype(np.int64)

    def find(self, root: Path, *, deep: bool = False) -> Finding:
        """What is there of it; with ``deep``, all of it is read."""
        paths = {name: self.find_file(root, name) for name in _FILES}
        found = [path for path in paths.values() if path is not None]
        if not found:
            return Finding.missing(root / self.folders[0])
        where = found[0].parent
        genuine, problem = compare_md5({path: self.md5.get(path.name) for path in found}, deep=deep)
        absent = [name for name, path in paths.items() if path is None]
        if absent:
            broken = f"No {', '.join(absent)} in {where}."
        else:  # the published files are known to be whole
            broken = self._count(root) if deep or not genuine else ""
        return Finding(
            present=True,
            whole=not broken,
            genuine=genuine,
            where=where,
            problem=broken or problem,
        )

    def _count(self, root: Path) -> str:
        try:
            arrays = self.load(root)
        except DataError as error:
            return str(error)
        counts = (len(arrays.x_train), len(arrays.x_test))
        expected = tuple(_PARTS.values())
        return "" if counts == expected else f"It has {counts} images. Must be {expected}."


MNIST = IdxSet(
    name="mnist",
    title="MNIST",
    folders=("MNIST/raw", "MNIST", ""),
    classes=tuple(str(digit) for digit in range(10)),
    # The .gz files: torchvision/datasets/mnist.py. The unpacked ones: what those four unpack to.
    md5={
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
)
"""Handwritten digits."""

FASHION_MNIST = IdxSet(
    name="fashion-mnist",
    title="Fashion-MNIST",
    folders=("FashionMNIST/raw", "FashionMNIST"),
    classes=_CLOTHES,
    # The README of zalandoresearch/fashion-mnist.
    md5={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
"""Pictures of clothes, in the format of MNIST."""


def load_mnist(root: Path | str) -> Arrays:
    """MNIST, 60,000 training and 10,000 test images of 28×28 pixels.

    Args:
        root: The data root; the four IDX files, gzipped or not, are in ``MNIST/raw`` under it
            or in ``root`` itself.
    """
    return MNIST.load(Path(root))


def load_fashion_mnist(root: Path | str) -> Arrays:
    """Fashion-MNIST, 60,000 training and 10,000 test images of 28×28 pixels.

    Args:
        root: The data root; the four IDX files, gzipped or not, are in ``FashionMNIST/raw``.
    """
    return FASHION_MNIST.load(Path(root))
