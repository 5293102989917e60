"""Predictions of the same samples after every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from ocar import accel
from ocar.errors import InputError
from ocar.methods.context import Context

T = TypeVar("T")


def require_classes(classifies: bool) -> None:
    """Raise unless there are classes to have probabilities."""
    if not classifies:
        raise InputError(
            "A regression has no probabilities of classes. Use predict(x), or a learner with "
            "likelihood='categorical'."
        )


class Repeated:
    """What :meth:`Learner.predict_repeatedly` returns.

    Args:
        make: Makes the prediction; it is made again when the head has grown.
        context: The parts of the learner.
    """

    def __init__(self, make: Callable[[], accel.RepeatedPrediction], context: Context) -> None:
        self._make = make
        self._context = context
        self._prediction: accel.RepeatedPrediction | None = None
        self._capacity = 0

    def __call__(self, n: int, use: Callable[[Tensor], T]) -> T:
        """Apply ``use`` to the predictions for the first n samples."""
        head = self._context.head
        capacity = 0 if head is None else head.capacity
        if self._prediction is None or capacity != self._capacity:
            if self._prediction is not None:
                self._prediction.finish()
                self._prediction = None
                accel.release_memory(self._context.device)
            self._prediction = self._make()  # a head that has grown has other tensors
            self._capacity = capacity
        return self._prediction(n, lambda *views: use(self._context.answer(*views)))

    def wait(self) -> None:
        """Wait until the predictions that were started can be read."""
        if self._prediction is not None:
            self._prediction.wait()
