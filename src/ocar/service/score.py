"""The prequential score: each sample is predicted before it is learned."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from ocar.learner import Learner
from ocar.structure import Inputs


class Score:
    """Accuracy of the last ``window`` samples; in regression their mean absolute error."""

    def __init__(self, window: int) -> None:
        self._scores: deque[float] = deque(maxlen=window)

    def take(self, learner: Learner, x: Inputs, y: Tensor) -> None:
        """Let a learner predict samples that it has not learned."""
        self._scores.extend(_scores(learner, x, y))

    def mean(self) -> float | None:
        """The score; None before the first sample. Any thread may ask."""
        scores = list(self._scores)
        return sum(scores) / len(scores) if scores else None

    def clear(self) -> None:
        """Forget all samples."""
        self._scores.clear()


def _scores(learner: Learner, x: Inputs, y: Tensor) -> list[float]:
    """For each sample whether it is predicted right, or the error of a regression."""
    if learner.head is not None and not learner.classes:
        return [0.0] * len(y)
    outputs = learner.predict(x).cpu()
    if learner.head is None:
        errors: list[float] = (outputs - y).abs().mean(1).tolist()
        return errors
    labels = torch.tensor(learner.classes)[outputs.argmax(1)]
    return [float(right) for right in (labels == y).tolist()]
