"""The common part of the classifiers: learn rows of numbers with labels of any kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
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

_OF_THE_DATA = ("normalize", "augment", "classes", "n_new")
"""Settings of a preset that belong to its data."""


class TabularLearner:
    """Learns rows of numbers, in mini-batches. It can be pickled.

    Args:
        features: Numbers in a row.
        method: A name in :data:`ocar.methods.registry.METHODS`.
        preset: A benchmark whose selected settings to start from, or None.
        settings: Settings of the method, over those of the preset.
        model: Makes the model; by default an MLP with two hidden layers of 100, in float64.
        batch_size: Most samples in a mini-batch.
        seed: Seed of everything random, the weights of the model included.

    Attributes:
        labels: The labels seen, in order of appearance.
    """

    def __init__(
        self,
        features: int,
        *,
        method: str,
        preset: str | None,
        settings: Mapping[str, Any] | None,
        model: ModelFactory | None,
        batch_size: int,
        seed: int,
    ) -> None:
        require("batch_size", batch_size, batch_size >= 1, "at least 1")
        self._arguments = {
            "features": features,
            "method": method,
            "preset": preset,
            "settings": settings,
            "model": model,
            "batch_size": batch_size,
            "seed": seed,
        }
        chosen = {} if preset is None else preset_settings(preset, method)
        values = {name: value for name, value in chosen.items() if name not in _OF_THE_DATA}
        self.batch_size = batch_size
        self.labels: list[Hashable] = []
        self._units: dict[Hashable, int] = {}
        self._learner = make_learner(
            method,
            _make_model(model, features, seed),
            **{**values, "seed": seed, **(settings or {})},
        )

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
        found[:, list(self._learner.classes)] = logits.softmax(1).numpy(force=True)
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
            "arguments": self._arguments,
            "tensors": serialize(own),
            "values": values,
            "labels": list(self.labels),
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state["arguments"])  # type: ignore[misc]
        self._learner.load_state(deserialize(state["tensors"]), state["values"])
        self.labels = list(state["labels"])
        self._units = {label: unit for unit, label in enumerate(self.labels)}


def _make_model(model: ModelFactory | None, features: int, seed: int) -> nn.Module:
    if model is None:
        # In float64 a prediction depends on the other rows by less than 1e-12.
        return make_model("mlp", image_shape=(1, 1, features), seed=seed).double()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "model"))
        return model(features)
