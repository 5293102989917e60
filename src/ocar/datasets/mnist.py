"""MNIST and Fashion-MNIST, from their four IDX files each, gzipped or not.

An IDX file is two zero bytes, a type code, the number of dimensions, each dimension as a 32-bit
big-endian number, then the values. Only unsigned bytes (code 8) are in use. The files are not
cached: unpacking 11 to 30 MB takes half a second.
"""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from ocar.datasets.archives import is_file, reading
from ocar.datasets.arrays import Arrays, Labelled, from_numpy
from ocar.datasets.base import DataSet
from ocar.errors import DataError
from ocar.files import open_regular

MOST_VALUES = 1 << 30
"""Most values in an IDX file; the largest known set, EMNIST, has 0.55e9."""

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTE = 8
_PIECE = 1 << 20
_DEFLATE = 1032  # the largest compression ratio of deflate

_PARTS = ("train", "t10k")
_FILES = tuple(f"{part}-{kind}-ubyte" for part in _PARTS for kind in ("images-idx3", "labels-idx1"))


@dataclass(frozen=True, kw_only=True)
class IdxSet(DataSet):
    """A data set in the format of MNIST."""

    name: str
    title: str  #: The name as it is written.
    folders: tuple[str, ...]  #: Folders under the data root to look in, the proper one first.
    classes: tuple[str, ...]  #: Name of each label.
    md5: Mapping[str, str]  #: Published checksums by file name.
    how_to_get: str
    counts: tuple[int, int] = (60_000, 10_000)

    def load(self, root: Path) -> Arrays:
        """Read it from the data root."""
        train, test = (self._part(root, part) for part in _PARTS)
        return from_numpy(self.name, train, test, classes=self.classes)

    def _find_file(self, root: Path, name: str) -> Path:
        """The file called ``name``, unpacked or gzipped; where it should be if there is none."""
        paths = [root / folder / file for folder in self.folders for file in (name, f"{name}.gz")]
        return next((path for path in paths if is_file(path)), paths[0])

    def _part(self, root: Path, part: str) -> Labelled:
        paths = [self._find_file(root, name) for name in _FILES if name.startswith(part)]
        for path in paths:
            if not is_file(path):
                raise DataError(
                    f"No {self.title} file {path.name} or {path.name}.gz in {path.parent}. "
                    f"{self.how_to_get}"
                )
        x, y = (read_idx(path) for path in paths)
        if x.ndim != 3:
            raise DataError(f"{paths[0]} holds an array of shape {x.shape}. Must be (n, h, w).")
        if y.shape != x.shape[:1]:
            raise DataError(f"{paths[1]} has shape {y.shape}. Must be ({len(x)},), as {paths[0]}.")
        if y.max(initial=0) >= len(self.classes):
            raise DataError(f"{paths[1]} has label {y.max()}. Must be 0..{len(self.classes) - 1}.")
        return x[:, None], y.astype(np.int64)

    def _locate(self, root: Path) -> tuple[Path, dict[Path, str | None]]:
        paths = [self._find_file(root, name) for name in _FILES]
        found = [path for path in paths if is_file(path)]
        if not found:
            return root / self.folders[0], {}
        return found[0].parent, {p: self.md5.get(p.name) if p in found else None for p in paths}


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Values of an IDX file, in the shape that its header gives.

    Its first bytes say whether it is gzipped, not its name.

    Raises:
        DataError: The file cannot be read, is no IDX file of unsigned bytes, or holds more or
            fewer values than its header says.
    """
    with reading(path), open_regular(path) as file:
        zipped = file.read(2) == _GZIP
        file.seek(0)
        most = path.stat().st_size * (_DEFLATE if zipped else 1)
        content = gzip.GzipFile(fileobj=file) if zipped else file
        return _parse(content, path, most=min(most, MOST_VALUES))


def _parse(file: IO[bytes] | gzip.GzipFile, path: Path, *, most: int) -> npt.NDArray[np.uint8]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != bytes((0, 0, _UNSIGNED_BYTE)) or magic[3] == 0:
        raise DataError(
            f"{path} is no IDX file of unsigned bytes: it begins with {magic.hex(' ')!r}, "
            "must be 00 00 08 and the number of dimensions."
        )
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path} ends within its header: it is truncated.")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    expected = math.prod(shape)
    if expected > most:
        raise DataError(
            f"{path} should hold {expected} values by its header {shape}, "
            f"which a file of its size cannot: at most {most}."
        )
    values = bytearray()  # in pieces, so that a wrong header does not allocate its size
    while len(values) <= expected and (piece := file.read(_PIECE)):
        values += piece
    if len(values) != expected:
        given = "more" if len(values) > expected else f"{len(values)}"
        raise DataError(f"{path} should hold {expected} values by its header {shape}, has {given}.")
    try:
        return np.frombuffer(values, dtype=np.uint8).reshape(shape)
    except ValueError as error:  # too many dimensions, or an empty array that is too large
        raise DataError(f"{path} has the impossible shape {shape}: {error}.") from error


_PUT = f"Put {', '.join(f'{name}.gz' for name in _FILES)} from"

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
    how_to_get=f"{_PUT} https://ossci-datasets.s3.amazonaws.com/mnist/ in MNIST/raw.",
)
"""Handwritten digits."""

FASHION_MNIST = IdxSet(
    name="fashion-mnist",
    title="Fashion-MNIST",
    folders=("FashionMNIST/raw", "FashionMNIST"),
    classes=(
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    # The README of zalandoresearch/fashion-mnist.
    md5={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    how_to_get=(
        f"{_PUT} http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/ in FashionMNIST/raw."
    ),
)  # fmt: skip
"""Pictures of clothes, in the format of MNIST."""


def load_mnist(root: Path | str) -> Arrays:
    """MNIST, 60,000 training and 10,000 test images of 28×28 pixels.

    The four files are in ``MNIST/raw`` or ``MNIST`` under the data root, or in the root itself.
    """
    return MNIST.load(Path(root))


def load_fashion_mnist(root: Path | str) -> Arrays:
    """Fashion-MNIST, 60,000 training and 10,000 test images of 28×28 pixels.

    The four files are in ``FashionMNIST/raw`` or ``FashionMNIST`` under the data root.
    """
    return FASHION_MNIST.load(Path(root))
