"""The digits inside scikit-learn: real data that needs no download."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import torch

from ocar.datasets.arrays import Arrays, from_numpy
from ocar.datasets.base import DataSet
from ocar.errors import MissingPackageError
from ocar.install import install_line
from ocar.rng import make_generator, random_kept


def load_digits() -> Arrays:
    """The 1,797 digits of 8×8 pixels inside scikit-learn, four fifths of each class to train on.

    The split is always the same. Grey levels 0..16 become 0..255.
    """
    try:
        with random_kept():
            bunch = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise MissingPackageError(
            "The digits data set comes with scikit-learn, which is not installed: "
            + install_line("demo")
        ) from error
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    y = bunch.target.astype(np.int64)
    generator = make_generator(0, "digits-split")
    is_test = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        chosen = torch.randperm(len(members), generator=generator)[: round(len(members) / 5)]
        is_test[members[chosen.numpy()]] = True
    return from_numpy("digits", (x[~is_test], y[~is_test]), (x[is_test], y[is_test]))


class Digits(DataSet):
    """The digits, wherever scikit-learn is installed."""

    name = "digits"
    how_to_get = "It comes with scikit-learn: pip install scikit-learn"
    counts = (1438, 359)

    def load(self, root: Path) -> Arrays:
        """Read them; ``root`` is not used."""
        return load_digits()

    def _locate(self, root: Path) -> tuple[Path, dict[Path, str | None]]:
        spec = importlib.util.find_spec("sklearn")
        if spec is None or spec.origin is None:
            return Path("scikit-learn"), {}
        where = Path(spec.origin).parent
        return where, {where: None}

    def _examine(self, root: Path, *, deep: bool, genuine: bool | None) -> str:
        return super()._examine(root, deep=deep, genuine=genuine) if deep else ""
