"""The official files of CIFAR: pickles, in their folder or in their tar.gz."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from ocar.datasets.arrays import Arrays, Labelled, from_numpy
from ocar.datasets.finding import Finding, compare_md5
from ocar.datasets.paths import cannot_read, is_file, is_folder
from ocar.datasets.tar import read_tar
from ocar.datasets.unpickle import ByteArray, load_plain
from ocar.errors import DataError

_SIDE = 32
_VALUES = 3 * _SIDE * _SIDE
_COUNTS = (50_000, 10_000)


@dataclass(frozen=True, kw_only=True)
class CifarSet:
    """One of the two data sets: which files it has and what is in them."""

    title: str
    """What it is called."""

    folder: str
    """The folder under the data root, and in the archive."""

    archive: str
    """The archive under the data root."""

    train: tuple[str, ...]
    """Files with training images."""

    test: str
    """The file with test images."""

    meta: str
    """The file with the names of the classes."""

    labels: Mapping[str, tuple[int, str]]
    """By the key of labels: how many classes, and the key of their names in ``meta``."""

    md5: Mapping[str, str]
    """Published checksums of the archive and of the files in the folder."""

    @property
    def how_to_get(self) -> str:
        """Where to get the files and where to put them."""
        return (
            f"Put https://www.cs.toronto.edu/~kriz/{self.archive}, unpacked or not, in the data "
            "root."
        )

    def read(self, root: Path) -> CifarContent:
        """All that is in the files."""
        files = self._files(root)
        train = [self._part(files, name) for name in self.train]
        return CifarContent(
            x_train=np.concatenate([x for x, _ in train]),
            y_train={key: np.concatenate([y[key] for _, y in train]) for key in self.labels},
            test=self._part(files, self.test),
            names=self._names(files) if self.meta in files else {},
        )

    def _place(self, root: Path) -> Path | None:
        """The folder if it has all images, else the archive, else what there is of the folder."""
        folder, archive = root / self.folder, root / self.archive
        if all(is_file(folder / name) for name in (*self.train, self.test)):
            return folder
        if is_file(archive):
            return archive
        return folder if is_folder(folder) else None

    def _files(self, root: Path) -> dict[str, Path | tuple[str, bytes]]:
        """The files by name: a path each or, from the archive, a place and the content."""
        place = self._place(root)
        if place is None:
            raise DataError(
                f"No {self.title}: neither {root / self.folder} nor {root / self.archive}. "
                f"{self.how_to_get}"
            )
        found: dict[str, Path | tuple[str, bytes]]
        names = (*self.train, self.test, self.meta)
        if place.name == self.archive:
            content = read_tar(place, {f"{self.folder}/{name}" for name in names})
            found = {
                name.removeprefix(f"{self.folder}/"): (f"{place}: {name}", data)
                for name, data in content.items()
            }
        else:
            found = {name: place / name for name in names if is_file(place / name)}
        for name in (*self.train, self.test):
            if name not in found:
                raise DataError(f"No {self.title} file {name} in {place}. {self.how_to_get}")
        return found

    def _part(self, files: Mapping[str, Path | tuple[str, bytes]], name: str) -> _Part:
        with _opened(files[name]) as (file, where):
            classes = {key: count for key, (count, _) in self.labels.items()}
            return read_cifar(file, where, classes=classes)

    def _names(self, files: Mapping[str, Path | tuple[str, bytes]]) -> dict[str, tuple[str, ...]]:
        with _opened(files[self.meta]) as (file, where):
            content = _load(file, where)
        found = {}
        for key, (count, meta_key) in self.labels.items():
            names = content.get(meta_key.encode())
            if not isinstance(names, list) or len(names) != count:
                raise DataError(f"{where} has no {count} names under {meta_key!r}.")
            if not all(isinstance(name, bytes) for name in names):
                raise DataError(f"{where}: the names under {meta_key!r} must be byte strings.")
            found[key] = tuple(name.decode("utf-8", "replace") for name in names)
        return found

    def find(self, root: Path, *, deep: bool = False) -> Finding:
        """What is there of it; with ``deep``, all of it is read."""
        where = self._place(root)
        if where is None:
            return Finding.missing(root / self.archive)
        names = (*self.train, self.test, self.meta)
        paths = [where]
        if where.name == self.folder:
            paths = [where / name for name in names if is_file(where / name)]
        genuine, problem = compare_md5({path: self.md5[path.name] for path in paths}, deep=deep)
        if genuine and where.name == self.folder and len(paths) < len(names):
            genuine = None
        broken = ""
        if deep or not genuine:  # the published files are known to be whole
            try:
                content = self.read(root)
                counts = (len(content.x_train), len(content.test[0]))
                if counts != _COUNTS:
                    broken = f"{where} has {counts} images. Must be {_COUNTS}."
            except DataError as error:
                broken = str(error)
        return Finding(
            present=True, whole=not broken, genuine=genuine, where=where, problem=broken or problem
        )


_Part = tuple[npt.NDArray[np.uint8], dict[str, npt.NDArray[np.int64]]]


@dataclass(frozen=True, kw_only=True)
class CifarContent:
    """All that the files of one of the two hold."""

    x_train: npt.NDArray[np.uint8]
    y_train: dict[str, npt.NDArray[np.int64]]
    test: _Part
    names: dict[str, tuple[str, ...]]

    def arrays(self, name: str, key: str) -> Arrays:
        """The data set with the labels under ``key``."""
        x_test, y_test = self.test
        train: Labelled = (self.x_train, self.y_train[key])
        return from_numpy(name, train, (x_test, y_test[key]), classes=self.names.get(key, ()))


@contextmanager
def _opened(file: Path | tuple[str, bytes]) -> Iterator[tuple[IO[bytes], str]]:
    if isinstance(file, tuple):
        yield io.BytesIO(file[1]), file[0]
        return
    try:
        with file.open("rb") as opened:
            yield opened, str(file)
    except OSError as error:
        raise cannot_read(file, error) from error


def read_cifar(file: IO[bytes], where: str, *, classes: Mapping[str, int]) -> _Part:
    """Images and labels of one official CIFAR pickle.

    Args:
        file: The pickle, for example ``cifar-100-python/train``.
        where: What it is called in messages.
        classes: How many classes there are under each key, for example ``"fine_labels"``.

    Returns:
        Images ``(n, 3, 32, 32)`` and, under each key, labels ``(n,)`` in ``0 .. classes − 1``.

    Raises:
        DataError: The file cannot be read, wants anything but plain values and an array, or
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
