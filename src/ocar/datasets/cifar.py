"""CIFAR-10 and CIFAR-100, from their official pickles, in a folder or in the tar.gz.

The files are not cached: reading them takes a second, as long as checking a cache of 180 MB.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import torch

from ocar.datasets.archives import is_file, locate_tree, read_tar, reading
from ocar.datasets.arrays import Arrays, from_numpy
from ocar.datasets.base import DataSet
from ocar.datasets.pickles import ByteArray, load_plain
from ocar.errors import DataError
from ocar.files import read_file

_SIDE = 32
_VALUES = 3 * _SIDE * _SIDE

_Part = tuple[npt.NDArray[np.uint8], dict[str, npt.NDArray[np.int64]]]
"""Images ``(n, 3, 32, 32)`` and labels ``(n,)`` by key."""


@dataclass(frozen=True, kw_only=True)
class CifarSet(DataSet):
    """One of the two data sets."""

    name: str
    how_to_get: str
    counts: tuple[int, int] = (50_000, 10_000)
    title: str  #: The name as it is written.
    folder: str  #: The folder under the data root, and in the archive.
    archive: str  #: The archive under the data root.
    train: tuple[str, ...]  #: Files with training images.
    test: str  #: The file with test images.
    meta: str  #: The file with the names of the classes.
    #: By key of labels: the number of classes, and the key of their names in ``meta``.
    labels: Mapping[str, tuple[int, str]]
    md5: Mapping[str, str]  #: Published checksums of the archive and of the files in the folder.

    def load(self, root: Path) -> Arrays:
        """Read it from the data root, with the first kind of labels."""
        return _arrays(self.name, next(iter(self.labels)), *self.read(root))

    def read(self, root: Path) -> tuple[_Part, _Part, dict[str, tuple[str, ...]]]:
        """Training data, test data, and names of the classes by key of labels."""
        files = self._files(root)
        classes = {key: count for key, (count, _) in self.labels.items()}
        parts = {
            name: read_cifar(io.BytesIO(content), where, classes=classes)
            for name, (where, content) in files.items()
            if name != self.meta
        }
        train = (
            np.concatenate([parts[name][0] for name in self.train]),
            {key: np.concatenate([parts[n][1][key] for n in self.train]) for key in classes},
        )
        names = self._names(*files[self.meta]) if self.meta in files else {}
        return train, parts[self.test], names

    def _files(self, root: Path) -> dict[str, tuple[str, bytes]]:
        """By name of a file: its name in messages, and its content."""
        images = (*self.train, self.test)
        places = {self.folder: self.archive}
        place, top = self._place(root, places, title=self.title, wanted=images)
        if top:
            content = read_tar(place, {f"{top}/{name}" for name in (*images, self.meta)})
            found = {name.split("/", 1)[1]: (f"{place}: {name}", content[name]) for name in content}
        else:
            found = {}
            for path in (place / name for name in (*images, self.meta)):
                if is_file(path):
                    with reading(path):
                        found[path.name] = str(path), read_file(path)
        for name in images:
            if name not in found:
                raise DataError(f"No {self.title} file {name} in {place}. {self.how_to_get}")
        return found

    def _names(self, where: str, data: bytes) -> dict[str, tuple[str, ...]]:
        content, found = _load(io.BytesIO(data), where), {}
        for key, (count, meta_key) in self.labels.items():
            names = content.get(meta_key.encode())
            if not isinstance(names, list) or len(names) != count:
                raise DataError(f"{where} has no {count} names under {meta_key!r}.")
            if not all(isinstance(name, bytes) for name in names):
                raise DataError(f"{where}: the names under {meta_key!r} must be byte strings.")
            found[key] = tuple(name.decode("utf-8", "replace") for name in names)
        return found

    def _locate(self, root: Path) -> tuple[Path, dict[Path, str | None]]:
        names = (*self.train, self.test)
        found = locate_tree(root, {self.folder: self.archive}, wanted=names)
        if found is None:
            return root / self.archive, {}
        where, top = found
        paths = [where] if top else [where / name for name in (*names, self.meta)]
        return where, {path: self.md5[path.name] if is_file(path) else None for path in paths}


def _arrays(
    name: str, key: str, train: _Part, test: _Part, names: dict[str, tuple[str, ...]]
) -> Arrays:
    """The data set with the labels under ``key``."""
    first, second = ((x, y[key]) for x, y in (train, test))
    return from_numpy(name, first, second, classes=names.get(key, ()))


def read_cifar(file: IO[bytes], where: str, *, classes: Mapping[str, int]) -> _Part:
    """Images ``(n, 3, 32, 32)`` and, by key, labels ``(n,)`` of one official CIFAR pickle.

    Args:
        file: The pickle, for example ``cifar-100-python/train``.
        where: Its name in messages.
        classes: Number of classes under each key, for example ``"fine_labels"``.

    Raises:
        DataError: The file cannot be read, asks for anything but plain values and an array, or
            does not hold what a CIFAR file holds.
    """
    content = _load(file, where)
    data = content.get(b"data")
    images = data.values if isinstance(data, ByteArray) else None
    if images is None or images.ndim != 2 or images.shape[1] != _VALUES:
        raise DataError(f"{where} is no CIFAR file: its 'data' is not an array of (n, {_VALUES}).")
    labels = {}
    for key, count in classes.items():
        given = content.get(key.encode())
        if not isinstance(given, list) or len(given) != len(images):
            raise DataError(f"{where} is no CIFAR file: no {key!r} for its {len(images)} images.")
        if not all(type(label) is int and 0 <= label < count for label in given):
            raise DataError(f"{where}: {key!r} must be whole numbers in 0..{count - 1}.")
        labels[key] = np.array(given, dtype=np.int64)
    return images.reshape(-1, 3, _SIDE, _SIDE), labels


def _load(file: IO[bytes], where: str) -> dict[object, object]:
    try:
        content = load_plain(file)
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"Cannot read {where} as a CIFAR file: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{where} is no CIFAR file: it holds a {type(content).__name__}.")
    return content


_URL = "https://www.cs.toronto.edu/~kriz"

# The checksums of the archives are on https://www.cs.toronto.edu/~kriz/cifar.html, those of the
# files in torchvision/datasets/cifar.py.
CIFAR10 = CifarSet(
    name="cifar10",
    how_to_get=f"Put {_URL}/cifar-10-python.tar.gz, unpacked or not, in the data root.",
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    labels={"labels": (10, "label_names")},
    md5={
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
)
"""Ten classes."""

CIFAR100 = CifarSet(
    name="cifar100",
    how_to_get=f"Put {_URL}/cifar-100-python.tar.gz, unpacked or not, in the data root.",
    title="CIFAR-100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    train=("train",),
    test="test",
    meta="meta",
    labels={
        "fine_labels": (100, "fine_label_names"),
        "coarse_labels": (20, "coarse_label_names"),
    },
    md5={
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
)
"""A hundred classes, in twenty superclasses of five."""


def load_cifar10(root: Path | str) -> Arrays:
    """CIFAR-10, 50,000 training and 10,000 test images of 32×32 pixels.

    The data root has ``cifar-10-batches-py`` or ``cifar-10-python.tar.gz``.
    """
    return CIFAR10.load(Path(root))


def load_cifar100(root: Path | str) -> Arrays:
    """CIFAR-100 with its fine labels, 50,000 training and 10,000 test images of 32×32 pixels.

    The data root has ``cifar-100-python`` or ``cifar-100-python.tar.gz``.
    """
    return CIFAR100.load(Path(root))


def load_cifar100_superclasses(root: Path | str) -> Arrays:
    """CIFAR-100 with its 20 coarse labels, in five domains.

    A domain has one class of every superclass: the first of each, in the order of the fine
    labels, then the second of each, and so on. So the meaning of a label drifts from domain
    to domain.
    """
    train, test, names = CIFAR100.read(Path(root))
    fine, coarse = (train[1][key] for key in ("fine_labels", "coarse_labels"))
    domain_of = np.full(CIFAR100.labels["fine_labels"][0], -1, dtype=np.int64)
    for superclass in np.unique(coarse):
        members = np.unique(fine[coarse == superclass])
        if (domain_of[members] >= 0).any():
            raise DataError(f"CIFAR-100 in {root} has a class in two superclasses.")
        domain_of[members] = np.arange(len(members))
    domain_test = domain_of[test[1]["fine_labels"]]
    if domain_test.min() < 0:
        raise DataError(f"CIFAR-100 in {root} has test images of classes without training images.")
    return dataclasses.replace(
        _arrays("cifar100-superclasses", "coarse_labels", train, test, names),
        domain_train=torch.from_numpy(domain_of[fine]),
        domain_test=torch.from_numpy(domain_test),
        domains=tuple(f"class {i + 1} of each" for i in range(domain_of.max() + 1)),
    )
