"""Whole data sets as tensors, read from the files that their publishers ship."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ocar.errors import DataError, MissingPackageError
from ocar.rng import make_generator
from ocar.streams.cifar import read_cifar
from ocar.streams.idx import read_idx


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrays:
    """Training and test images with their labels."""

    name: str
    """What the data set is called."""

    x_train: torch.Tensor
    """Training images ``(n, channels, height, width)``, uint8."""

    y_train: torch.Tensor
    """Their labels ``(n,)``, int64."""

    x_test: torch.Tensor
    """Test images ``(m, channels, height, width)``, uint8."""

    y_test: torch.Tensor
    """Their labels ``(m,)``, int64."""

    def __post_init__(self) -> None:
        for part, x, y in (
            ("train", self.x_train, self.y_train),
            ("test", self.x_test, self.y_test),
        ):
            if x.dtype != torch.uint8 or x.dim() != 4 or len(x) == 0:
                raise DataError(
                    f"{self.name}: x_{part} is {x.dtype} of shape {tuple(x.shape)}. "
                    "Must be uint8 (n, channels, height, width) with n > 0."
                )
            if y.dtype != torch.int64 or y.shape != x.shape[:1]:
                raise DataError(
                    f"{self.name}: y_{part} is {y.dtype} of shape {tuple(y.shape)}. "
                    f"Must be int64 ({len(x)},), one label an image."
                )
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise DataError(
                f"{self.name}: images of {tuple(self.x_train.shape[1:])} for training and of "
                f"{tuple(self.x_test.shape[1:])} for test. Must be the same."
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        _, channels, height, width = self.x_train.shape
        return channels, height, width

    def to(self, device: torch.device | str) -> Arrays:
        """The same data on ``device``."""
        return Arrays(
            name=self.name,
            x_train=self.x_train.to(device),
            y_train=self.y_train.to(device),
            x_test=self.x_test.to(device),
            y_test=self.y_test.to(device),
        )


def data_root() -> Path:
    """Where data sets are looked for: ``OCAR_DATA``, else a folder for the user's data."""
    given = os.environ.get("OCAR_DATA")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "ocar"


def load_digits() -> Arrays:
    """The 1,797 digits of 8×8 pixels inside scikit-learn, four fifths of each class to train on.

    The split is always the same. Grey levels 0..16 become 0..255.
    """
    try:
        bunch = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise MissingPackageError(
            "The digits data set comes with scikit-learn, which is not installed: "
            'pip install "ocar[paper]"'
        ) from error
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    y = bunch.target.astype(np.int64)
    generator = make_generator(0, "digits-split")
    is_test = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        chosen = torch.randperm(len(members), generator=generator)[: round(len(members) / 5)]
        is_test[members[chosen.numpy()]] = True
    return _arrays("digits", (x[~is_test], y[~is_test]), (x[is_test], y[is_test]))


def load_mnist(root: Path | str) -> Arrays:
    """MNIST, 60,000 training and 10,000 test images of 28×28 pixels.

    Args:
        root: The data root; the four IDX files, gzipped or not, are in ``MNIST/raw`` under it
            or in ``root`` itself.
    """
    train, test = (
        _labelled_idx(
            Path(root), images=f"{part}-images-idx3-ubyte", labels=f"{part}-labels-idx1-ubyte"
        )
        for part in ("train", "t10k")
    )
    return _arrays("mnist", train, test)


def load_cifar100(root: Path | str) -> Arrays:
    """CIFAR-100 with its fine labels, 50,000 training and 10,000 test images of 32×32 pixels.

    Args:
        root: The data root, with the official ``cifar-100-python/train`` and ``test``.
    """
    folder = Path(root) / "cifar-100-python"
    parts = []
    for part in ("train", "test"):
        path = folder / part
        if not path.is_file():
            raise DataError(
                f"No CIFAR-100 file {path}. Unpack the official cifar-100-python.tar.gz in {root}."
            )
        parts.append(read_cifar(path, label_key="fine_labels", classes=100))
    return _arrays("cifar100", *parts)


_Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def _labelled_idx(root: Path, *, images: str, labels: str) -> _Labelled:
    image_path, label_path = (_find_idx(root, name) for name in (images, labels))
    x, y = read_idx(image_path), read_idx(label_path)
    if x.ndim != 3:
        raise DataError(f"{image_path} holds an array of shape {x.shape}. Must be (n, h, w).")
    if y.shape != x.shape[:1]:
        raise DataError(f"{label_path} has shape {y.shape}. Must be ({len(x)},), as {image_path}.")
    return x[:, None], y.astype(np.int64)


def _find_idx(root: Path, name: str) -> Path:
    for folder in (root / "MNIST" / "raw", root):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise DataError(f"No MNIST file {name} or {name}.gz in {root / 'MNIST' / 'raw'} or {root}.")


def _arrays(name: str, train: _Labelled, test: _Labelled) -> Arrays:
    """Copies, since what is read from a file is not writable."""
    return Arrays(
        name=name,
        x_train=torch.from_numpy(train[0].copy()),
        y_train=torch.from_numpy(train[1].copy()),
        x_test=torch.from_numpy(test[0].copy()),
        y_test=torch.from_numpy(test[1].copy()),
    )
