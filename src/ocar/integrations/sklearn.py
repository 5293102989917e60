"""A classifier with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocar.errors import InputError, MissingPackageError
from ocar.install import install_line
from ocar.integrations.tabular import ModelFactory, Rows, TabularLearner
from ocar.rng import random_kept

try:
    with random_kept():
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.utils import check_random_state
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise MissingPackageError(
        f"The classifier needs scikit-learn 1.6 or newer, and {error}: {install_line('sklearn')}"
    ) from error

__all__ = ["OnlineClassifier"]


class OnlineClassifier(ClassifierMixin, BaseEstimator):
    """Learns from a stream, or from a table as if it were a stream.

    The features are standardised online, unless ``settings`` say otherwise. Unlike scikit-learn's
    own classifiers it takes new labels in :meth:`partial_fit`: ``classes_`` grows.

    Args:
        method: A method of this package, such as ``"ocar"`` or ``"er"``.
        model: From the number of features to an ``nn.Module`` that ends in an ``nn.Linear``; by
            default an MLP with two hidden layers of 100 units, in float64.
        preset: A benchmark whose selected settings to start from, except those of its data. OCAR
            needs none; other methods need a preset or a learning rate.
        settings: Settings of the method by name, over those of the preset: ``{"lr": 0.01}``.
        batch_size: Most samples in a mini-batch; each is learned in ``passes`` steps.
        epochs: Passes of :meth:`fit` through the samples.
        shuffle: Whether :meth:`fit` shuffles the samples; :meth:`partial_fit` never does.
        random_state: Seed of everything random: an integer, a ``RandomState`` or None.

    Attributes:
        classes_: The known labels, sorted.
        n_features_in_: Features of a sample.
        feature_names_in_: Their names, where X had any.
    """

    def __init__(
        self,
        method: str = "ocar",
        *,
        model: ModelFactory | None = None,
        preset: str | None = None,
        settings: Mapping[str, Any] | None = None,
        batch_size: int = 10,
        epochs: int = 1,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.model = model
        self.preset = preset
        self.settings = settings
        self.batch_size = batch_size
        self.epochs = epochs
        self.shuffle = shuffle
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Forget everything, then learn from a table.

        Args:
            X: Shape ``(n, features)``.
            y: One label a row, of any kind.
        """
        rows, labels = self._checked(X, y, reset=True)
        if self.epochs < 1:
            raise InputError(f"Invalid epochs={self.epochs}. Must be at least 1.")
        random = self._begin()
        self.classes_ = np.unique(labels)
        for _ in range(self.epochs):
            order = random.permutation(len(rows)) if self.shuffle else np.arange(len(rows))
            self._learner.learn(rows[order], labels[order].tolist())
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Learn from some more samples, in their order.

        Args:
            X: Shape ``(n, features)``.
            y: One label a row, of any kind.
            classes: Labels that may follow; their probability is 0 until then.
        """
        fresh = not hasattr(self, "classes_")
        rows, labels = self._checked(X, y, reset=fresh)
        known = np.unique(labels) if fresh else _united(self.classes_, labels)
        if classes is not None:
            known = _united(known, np.asarray(classes))
        if fresh:
            self._begin()
        self.classes_ = known
        self._learner.learn(rows, labels.tolist())
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each row."""
        probabilities = self.predict_proba(X)
        chosen: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return chosen

    def predict_proba(self, X: ArrayLike) -> Rows:
        """The probability of each of ``classes_``, ``(n, len(classes_))``."""
        check_is_fitted(self, "classes_")
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        found = np.zeros((len(rows), len(self.classes_)))
        columns = np.searchsorted(self.classes_, np.asarray(self._learner.labels))
        found[:, columns] = self._learner.probabilities(rows)
        return found

    def _checked(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[Rows, NDArray[Any]]:
        rows, labels = validate_data(self, X, y, dtype=np.float64, reset=reset)
        check_classification_targets(labels)
        return rows, column_or_1d(labels)

    def _begin(self) -> np.random.RandomState:
        random: np.random.RandomState = check_random_state(self.random_state)
        self._learner = TabularLearner(
            features=self.n_features_in_,
            method=self.method,
            preset=self.preset,
            settings=self.settings,
            model=self.model,
            batch_size=self.batch_size,
            seed=int(random.randint(2**31 - 1)),
        )
        return random


def _united(known: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """All labels, sorted; numbers and strings have no order."""
    if (labels.dtype.kind in "OUS") != (known.dtype.kind in "OUS"):
        raise InputError(
            f"The labels so far are {known.dtype}; given {labels.dtype}. Must all be numbers, or "
            "all be strings."
        )
    return np.union1d(known, labels)
