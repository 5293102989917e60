"""CIFAR-10 and CIFAR-100.

They are read from the published files every time: a pickle of them is one array, there within
a second; a cache would take as long to check, and 180 MB of disk.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

from ocar.datasets.arrays import Arrays
from ocar.datasets.cifar_files import CifarSet
from ocar.errors import DataError

# The checksums of the archives are on https://www.cs.toronto.edu/~kriz/cifar.html, those of the
# files in torchvision/datasets/cifar.py.
CIFAR10 = CifarSet(
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

    Args:
        root: The data root, with ``cifar-10-batches-py`` or ``cifar-10-python.tar.gz``.
    """
    return CIFAR10.read(Path(root)).arrays("cifar10", "labels")


def load_cifar100(root: Path | str) -> Arrays:
    """CIFAR-100 with its fine labels, 50,000 training and 10,000 test images of 32×32 pixels.

    Args:
        root: The data root, with ``cifar-100-python`` or ``cifar-100-python.tar.gz``.
    """
    return CIFAR100.read(Path(root)).arrays("cifar100", "fine_labels")


def load_cifar100_superclasses(root: Path | str) -> Arrays:
    """CIFAR-100 with its 20 coarse labels, in five domains.

    A domain has one class of every superclass: the first of each, in the order of the fine
    labels, then the second of each, and so on. So the meaning of a label drifts from domain
    to domain.

    Args:
        root: The data root, as for :func:`load_cifar100`.
    """
    content = CIFAR100.read(Path(root))
    arrays = content.arrays("cifar100-superclasses", "coarse_labels")
    fine, coarse = content.y_train["fine_labels"], content.y_train["coarse_labels"]
    rank = np.full(CIFAR100.labels["fine_labels"][0], -1, dtype=np.int64)  # of a class, its domain
    for superclass in np.unique(coarse):
        members = np.unique(fine[coarse == superclass])
        if (rank[members] >= 0).any():
            raise DataError(f"CIFAR-100 in {root} has a class in two superclasses.")
        rank[members] = np.arange(len(members))
    domain_test = rank[content.test[1]["fine_labels"]]
    if domain_test.min() < 0:
        raise DataError(f"CIFAR-100 in {root} has test images of classes without training images.")
    return dataclasses.replace(
        arrays,
        domain_train=torch.from_numpy(rank[fine]),
        domain_test=torch.from_numpy(domain_test),
        domains=tuple(f"class {i + 1} of each" for i in range(rank.max() + 1)),
    )
