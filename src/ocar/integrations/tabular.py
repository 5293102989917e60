"""The common part of the classifiers: learn rows of numbers with labels of any kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as deserialize
from safetensors.torch import save as serialize
from torch import nn

from ocar.config import require
from ocar.make import make_learner
from ocar.methods.registry import preset_settings
from ocar.models import make_model
from ocar.rng import derive_seed

ModelFactory = Callable[[int], nn.Module]
"""From the number of features to a model that ends in an ``nn.Linear``."""

Rows = NDArray[np.float64]
"""Samples, ``(n, features)``."""

_OF_THE_DATA = ("normalize", "standardize", "augment", "classes", "n_new")
"""Settings of a preset that belong to its data."""


@dataclass(kw_only=True, eq=False)
class TabularLearner:
    """Learns rows of numbers, in mini-batches. It can be pickled."""

    features: int  #: Numbers in a row.
    method: str  #: A name in :data:`ocar.methods.registry.METHODS`.
    preset: str | None  #: A benchmark whose selected settings to start from.
    settings: Mapping[str, Any] | None  #: Settings of the method, over those of the preset.
    model: ModelFactory | None  #: By default an MLP with two hidden layers of 100, in float64.
    batch_size: int  #: Most samples in a mini-batch.
    seed: int  #: Seed of everything random, the weights of the model included.

    def __post_init__(self) -> None:
        require("batch_size", self.batch_size, self.batch_size >= 1, "at least 1")
        chosen = {} if self.preset is None else preset_settings(self.preset, self.method)
        values = {name: value for name, value in chosen.items() if name not in _OF_THE_DATA}
        self.labels: list[Hashable] = []  # in order of appearance
        self._units: dict[Hashable, int] = {}
        self._learner = make_learner(
            self.method,
            self._make_model(),
            **{**values, "seed": self.seed, **(self.settings or {})},
        )

    def _make_model(self) -> nn.Module:
        if self.model is None:
            # In float64 a prediction depends on the other rows by less than 1e-12.
            shape = (1, 1, self.features)
            return make_model("mlp", image_shape=shape, seed=self.seed).double()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(self.seed, "model"))
            return self.model(self.features)

    def learn(self, x: Rows, y: Sequence[Hashable]) -> None:
        """Learn from rows ``(n, features)`` with one label a row, in their order.

        Raises:
            InputError: A mini-batch cannot be learned from; earlier ones were.
        """
        for first in range(0, len(x), self.batch_size):
            part = slice(first, first + self.batch_size)
            self._learner.learn(torch.tensor(x[part]), torch.tensor(self._encode(y[part])))

    def probabilities(self, x: Rows) -> Rows:
        """The probability of each of :attr:`labels`, ``(n, len(labels))``."""
        logits = self._learner.predict(torch.tensor(x)).double()
        found = np.zeros((len(x), len(self.labels)))
        units = self._learner.classes  # with those of ``settings`` that no label has yet
        known = [column for column, unit in enumerate(units) if unit < len(self.labels)]
        places = [units[column] for column in known]
        found[:, places] = logits[:, known].softmax(1).numpy(force=True)
        return found

    def _encode(self, y: Sequence[Hashable]) -> list[int]:
        for label in y:
            if label not in self._units:
                self._units[label] = len(self.labels)
                self.labels.append(label)
        return [self._units[label] for label in y]

    def __getstate__(self) -> dict[str, Any]:
        tensors, values = self._learner.state()
        # Serialized tensors of equal state are equal bytes; pickled tensors are not.
        own = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
        return {
            "arguments": {field.name: getattr(self, field.name) for field in fields(self)},
            "tensors": serialize(own),
            "values": values,
            "labels": list(self.labels),
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state["arguments"])  # type: ignore[misc]
        self._learner.load_state(deserialize(state["tensors"]), state["values"])
        self.labels = list(state["labels"])
        self._units = {label: unit for unit, label in enumerate(self.labels)}
