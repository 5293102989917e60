"""Data sets as their publishers ship them, under one data root.

``load_*`` read one into :class:`Arrays`; :func:`status` and :func:`verify` say which are complete
and genuine.
"""

from __future__ import annotations

from pathlib import Path

from ocar.datasets.arrays import Arrays
from ocar.datasets.base import DataSet, DataStatus, data_root
from ocar.datasets.cifar import (
    CIFAR10,
    CIFAR100,
    load_cifar10,
    load_cifar100,
    load_cifar100_superclasses,
)
from ocar.datasets.clear import CLEAR10, load_clear10
from ocar.datasets.clinc import CLINC150, load_clinc150
from ocar.datasets.digits import Digits, load_digits
from ocar.datasets.domains import PACS, load_classes, load_domains, load_pacs
from ocar.datasets.mnist import FASHION_MNIST, MNIST, load_fashion_mnist, load_mnist
from ocar.datasets.tiny_imagenet import TINY_IMAGENET, load_tiny_imagenet
from ocar.registry import unknown

__all__ = [
    "DATA_SETS",
    "Arrays",
    "DataSet",
    "DataStatus",
    "data_root",
    "get_data_set",
    "load_cifar10",
    "load_cifar100",
    "load_cifar100_superclasses",
    "load_classes",
    "load_clear10",
    "load_clinc150",
    "load_digits",
    "load_domains",
    "load_fashion_mnist",
    "load_mnist",
    "load_pacs",
    "load_tiny_imagenet",
    "status",
    "verify",
]

_ALL: tuple[DataSet, ...] = (
    Digits(), MNIST, FASHION_MNIST, CIFAR10, CIFAR100, TINY_IMAGENET, CLEAR10, PACS,
    CLINC150,
)  # fmt: skip

DATA_SETS: dict[str, DataSet] = {data_set.name: data_set for data_set in _ALL}
"""The data sets by name."""


def get_data_set(name: str) -> DataSet:
    """The data set called ``name``; the error for an unknown one lists all names."""
    if name not in DATA_SETS:
        raise unknown("data set", name, DATA_SETS)
    return DATA_SETS[name]


def status(root: Path | str, *, names: tuple[str, ...] | None = None) -> list[DataStatus]:
    """The state of some or all data sets by names, sizes and, for files up to 512 MB, md5.

    The data root need not exist.
    """
    return [get_data_set(name).find(Path(root)) for name in names or DATA_SETS]


def verify(root: Path | str, *, names: tuple[str, ...] | None = None) -> list[DataStatus]:
    """As :func:`status`, after all files have been read and hashed, the cache included."""
    return [get_data_set(name).find(Path(root), deep=True) for name in names or DATA_SETS]
