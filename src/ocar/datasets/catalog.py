"""Which data sets are there, whole and genuine, and how to get the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ocar.datasets import clear, digits, domains, tiny_imagenet
from ocar.datasets.arrays import Arrays
from ocar.datasets.cifar import CIFAR10, CIFAR100, load_cifar10, load_cifar100
from ocar.datasets.finding import Finding
from ocar.datasets.mnist import FASHION_MNIST, MNIST
from ocar.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class DataStatus:
    """What is known of one data set under a data root."""

    name: str
    """What it is called."""

    present: bool
    """Whether any of it is there."""

    whole: bool
    """Whether all of it is there and, after :func:`verify`, can be read."""

    genuine: bool | None
    """Whether its files have the published md5; None where that cannot be said."""

    where: Path
    """The folder or archive it is in, or where it is looked for."""

    how_to_get: str
    """Where to get it and where to put it."""

    problem: str = ""
    """What is wrong; empty if nothing is."""


class _Find(Protocol):
    def __call__(self, root: Path, *, deep: bool = False) -> Finding: ...


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set that can be read by name."""

    name: str
    """What it is called."""

    load: Callable[[Path], Arrays]
    """From the data root to the data."""

    find: _Find
    """From the data root to what is there of it."""

    how_to_get: str
    """Where to get it and where to put it."""


def _load_digits(root: Path) -> Arrays:
    return digits.load_digits()


_ALL = (
    DataSet(
        name="digits",
        load=_load_digits,
        find=digits.find_digits,
        how_to_get=f"It comes with scikit-learn: {digits.HOW_TO_GET}",
    ),
    DataSet(name="mnist", load=MNIST.load, find=MNIST.find, how_to_get=MNIST.how_to_get),
    DataSet(
        name="fashion-mnist",
        load=FASHION_MNIST.load,
        find=FASHION_MNIST.find,
        how_to_get=FASHION_MNIST.how_to_get,
    ),
    DataSet(name="cifar10", load=load_cifar10, find=CIFAR10.find, how_to_get=CIFAR10.how_to_get),
    DataSet(
        name="cifar100", load=load_cifar100, find=CIFAR100.find, how_to_get=CIFAR100.how_to_get
    ),
    DataSet(
        name="tiny-imagenet",
        load=tiny_imagenet.load_tiny_imagenet,
        find=tiny_imagenet.find_tiny_imagenet,
        how_to_get=tiny_imagenet.HOW_TO_GET,
    ),
    DataSet(
        name="clear10",
        load=clear.load_clear10,
        find=clear.find_clear10,
        how_to_get=clear.HOW_TO_GET,
    ),
    DataSet(
        name="pacs",
        load=domains.load_pacs,
        find=domains.find_pacs,
        how_to_get=domains.HOW_TO_GET,
    ),
)

DATA_SETS: dict[str, DataSet] = {data_set.name: data_set for data_set in _ALL}
"""The data sets by name."""


def status(root: Path | str, *, names: tuple[str, ...] | None = None) -> list[DataStatus]:
    """What is there, by names, sizes and, for files up to 512 MB, md5.

    Args:
        root: The data root; need not exist.
        names: Which data sets; all if not given.
    """
    return [_look(get_data_set(name), Path(root), deep=False) for name in names or DATA_SETS]


def verify(root: Path | str, *, names: tuple[str, ...] | None = None) -> list[DataStatus]:
    """What is there, after all of it has been read and hashed, the cache included.

    Args:
        root: The data root; need not exist.
        names: Which data sets; all if not given.
    """
    return [_look(get_data_set(name), Path(root), deep=True) for name in names or DATA_SETS]


def get_data_set(name: str) -> DataSet:
    """The data set called ``name``, or an error that lists those there are."""
    if name not in DATA_SETS:
        raise ConfigError(f"Invalid data set {name!r}. Must be one of {', '.join(DATA_SETS)}.")
    return DATA_SETS[name]


def _look(data_set: DataSet, root: Path, *, deep: bool) -> DataStatus:
    try:
        found = data_set.find(root, deep=deep)
    except DataError as error:  # not even whether it is there could be seen
        found = Finding(present=False, whole=False, where=root, problem=str(error))
    return DataStatus(
        name=data_set.name,
        present=found.present,
        whole=found.whole,
        genuine=found.genuine,
        where=found.where,
        how_to_get=data_set.how_to_get,
        problem=found.problem,
    )
