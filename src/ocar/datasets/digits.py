"""The digits inside scikit-learn: real data that needs no download."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import torch

from ocar.datasets.arrays import Arrays, from_numpy
from ocar.datasets.finding import Finding
from ocar.errors import DataError, MissingPackageError
from ocar.rng import make_generator, random_kept

HOW_TO_GET = 'pip install "ocar[paper]"'

_IMAGES = 1797


def load_digits() -> Arrays:
    """The 1,797 digits of 8×8 pixels inside scikit-learn, four fifths of each class to train on.

    The split is always the same. Grey levels 0..16 become 0..255.
    """
    try:
        with random_kept():
            bunch = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise MissingPackageError(
            "The digits data set comes with scikit-learn, which is not installed: " + HOW_TO_GET
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


def find_digits(root: Path, *, deep: bool = False) -> Finding:
    """Whether scikit-learn is there, and with ``deep`` whether it holds the 1,797 digits."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        return Finding.missing(Path("scikit-learn"))
    where = Path(spec.origin).parent
    problem = ""
    if deep:
        try:
            arrays = load_digits()
        except (DataError, MissingPackageError) as error:
            problem = str(error)
        else:
            count = len(arrays.x_train) + len(arrays.x_test)
            problem = "" if count == _IMAGES else f"{where} has {count} digits, not {_IMAGES}"
    return Finding(present=True, whole=not problem, where=where, problem=problem)
