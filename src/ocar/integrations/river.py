"""A classifier with the interface of river: one sample at a time, as a dictionary."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ocar.config import require
from ocar.errors import InputError, MissingPackageError
from ocar.install import install_line
from ocar.integrations.tabular import ModelFactory, Rows, TabularLearner

try:
    from river.base import Classifier
except ImportError as error:
    raise MissingPackageError(
        f"The classifier needs river, and {error}: {install_line('river')}"
    ) from error

__all__ = ["RiverClassifier"]


class RiverClassifier(Classifier):
    """Learns from a stream of dictionaries.

    The features are those of the first sample unless ``features`` names them. A missing feature
    counts as 0. A feature that appears later is ignored, since a network has a fixed number of
    inputs. They are standardised online, unless ``settings`` say otherwise.

    Args:
        method: A method of this package, such as ``"ocar"`` or ``"er"``.
        features: Names of the features, if the first sample may lack some.
        model: From the number of features to an ``nn.Module`` that ends in an ``nn.Linear``; by
            default an MLP with two hidden layers of 100 units, in float64.
        preset: A benchmark whose selected settings to start from, except those of its data. OCAR
            needs none; other methods need a preset or a learning rate.
        settings: Settings of the method by name, over those of the preset.
        batch_size: Samples that are learned together.
        seed: Seed of everything random.
    """

    def __init__(
        self,
        method: str = "ocar",
        *,
        features: Sequence[Hashable] | None = None,
        model: ModelFactory | None = None,
        preset: str | None = None,
        settings: Mapping[str, Any] | None = None,
        batch_size: int = 1,
        seed: int = 0,
    ) -> None:
        require("batch_size", batch_size, batch_size >= 1, "at least 1")
        self.method = method
        self.features = features
        self.model = model
        self.preset = preset
        self.settings = settings
        self.batch_size = batch_size
        self.seed = seed
        self._names: list[Hashable] = []
        self._learner: TabularLearner | None = None
        self._waiting: list[tuple[Rows, Hashable]] = []

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Mapping[Hashable, Any], y: Hashable) -> None:
        """Learn from a sample, once there are ``batch_size``.

        Args:
            x: Numbers by name of feature.
            y: The label, of any kind.

        Raises:
            InputError: A feature is not a number, or is not finite, or the label is NaN. Nothing
                has changed.
        """
        if y != y:  # NaN, which would be a new label each time
            raise InputError("The label must not be NaN.")
        if self._learner is None:
            names = list(x) if self.features is None else list(self.features)
            if not names:
                raise InputError("The first sample has no features. Must have at least one.")
            self._names = sorted(names, key=str)
            self._row(x)
            self._learner = TabularLearner(
                features=len(self._names),
                method=self.method,
                preset=self.preset,
                settings=self.settings,
                model=self.model,
                batch_size=self.batch_size,
                seed=self.seed,
            )
        self._waiting.append((self._row(x), y))
        if len(self._waiting) >= self.batch_size:
            rows, labels = zip(*self._waiting, strict=True)
            self._waiting.clear()
            self._learner.learn(np.stack(rows), labels)

    def predict_proba_one(self, x: Mapping[Hashable, Any], **kwargs: Any) -> dict[Any, float]:
        """The probability of each label learned so far; empty before the first."""
        if self._learner is None or not self._learner.labels:
            return {}
        (found,) = self._learner.probabilities(self._row(x)[None])
        return dict(zip(self._learner.labels, found.tolist(), strict=True))

    def _row(self, x: Mapping[Hashable, Any]) -> Rows:
        try:
            row = np.array([float(x.get(name, 0.0)) for name in self._names])
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"The features must be numbers; given {dict(x)!r}.") from error
        if not np.isfinite(row).all():
            raise InputError(f"The features must be finite; given {dict(x)!r}.")
        return row

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {}
