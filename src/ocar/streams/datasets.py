"""The data sets of :mod:`ocar.datasets`, under their former name."""

from ocar.datasets import (
    Arrays,
    data_root,
    load_cifar10,
    load_cifar100,
    load_cifar100_superclasses,
    load_clear10,
    load_digits,
    load_domains,
    load_fashion_mnist,
    load_mnist,
    load_pacs,
    load_tiny_imagenet,
)

__all__ = [
    "Arrays",
    "data_root",
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
]
