"""The data sets by name, and which of them are complete and genuine."""

from __future__ import annotations

from pathlib import Path

from ocar.datasets.base import DataSet, DataStatus
from ocar.datasets.cifar import CIFAR10, CIFAR100
from ocar.datasets.clear import Clear10
from ocar.datasets.digits import Digits
from ocar.datasets.domains import Pacs
from ocar.datasets.mnist import FASHION_MNIST, MNIST
from ocar.datasets.tiny_imagenet import TinyImageNet
from ocar.errors import ConfigError

_ALL: tuple[DataSet, ...] = (
    Digits(),
    MNIST,
    FASHION_MNIST,
    CIFAR10,
    CIFAR100,
    TinyImageNet(),
    Clear10(),
    Pacs(),
)

DATA_SETS: dict[str, DataSet] = {data_set.name: data_set for data_set in _ALL}
"""The data sets by name."""


def status(root: Path | str, *, names: tuple[str, ...] | None = None) -> list[DataStatus]:
    """The state of data sets by names, sizes and, for files up to 512 MB, md5.

    Args:
        root: The data root; need not exist.
        names: Which data sets; all by default.
    """
    return [get_data_set(name).find(Path(root)) for name in names or DATA_SETS]


def verify(root: Path | str, *, names: tuple[str, ...] | None = None) -> list[DataStatus]:
    """The state of data sets after all files have been read and hashed, the cache included.

    Args:
        root: The data root; need not exist.
        names: Which data sets; all by default.
    """
    return [get_data_set(name).find(Path(root), deep=True) for name in names or DATA_SETS]


def get_data_set(name: str) -> DataSet:
    """The data set called ``name``; the error for an unknown one lists all names."""
    if name not in DATA_SETS:
        raise ConfigError(f"Invalid data set {name!r}. Must be one of {', '.join(DATA_SETS)}.")
    return DATA_SETS[name]
