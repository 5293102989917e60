"""Data sets as their publishers ship them, under one data root.

``load_*`` read one into :class:`Arrays`; :func:`status` and :func:`verify` say which are complete
and genuine.
"""

from ocar.datasets.arrays import Arrays
from ocar.datasets.base import DataSet, DataStatus, data_root
from ocar.datasets.catalog import DATA_SETS, get_data_set, status, verify
from ocar.datasets.cifar import load_cifar10, load_cifar100, load_cifar100_superclasses
from ocar.datasets.clear import load_clear10
from ocar.datasets.digits import load_digits
from ocar.datasets.domains import load_domains, load_pacs
from ocar.datasets.mnist import load_fashion_mnist, load_mnist
from ocar.datasets.tiny_imagenet import load_tiny_imagenet

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
    "load_clear10",
    "load_digits",
    "load_domains",
    "load_fashion_mnist",
    "load_mnist",
    "load_pacs",
    "load_tiny_imagenet",
    "status",
    "verify",
]
