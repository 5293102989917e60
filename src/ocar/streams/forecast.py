"""Forecasting a time series online: targets come with the delay of the horizon.

A forecast at time t predicts the values at t + 1 to t + H, so its targets are complete at t + H. A
learner that gets the targets at once has seen the future of its next H − 1 forecasts. Here a batch
at time t has two parts:

- to learn: the pairs whose horizon has ended by t,
- to forecast until the next batch: the windows that end at t, t + 1, ….
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from ocar.config import require_sizes
from ocar.errors import ConfigError, DataError
from ocar.streams.base import Labelled


@dataclass(frozen=True, kw_only=True, eq=False)
class ForecastBatch:
    """What is known at a time, and what is asked from then on."""

    time: int  #: Index of the last value that is known.
    known: Labelled | None  #: Windows and targets whose horizon has just ended; None at first.
    x: Tensor  #: Windows that end at ``time``, ``time + 1``, …: ``(n, columns · window)``.
    y: Tensor  #: What follows them, to measure forecasts by: ``(n, targets · horizon)``.


class ForecastStream(Sequence[ForecastBatch]):
    """Windows of a time series in the order of time.

    Learn what is known, then forecast::

        for batch in ForecastStream(series, window=96, horizon=24, every=24):
            if batch.known is not None:
                learner.learn(*batch.known)
            if learner.batches:
                error.update(learner.predict(batch.x), batch.y)

    A sample has one column after another, each from its oldest value to its newest, so
    ``nn.Unflatten(1, (columns, window))`` gives a convolution its channels. The stream is a
    sequence: ``stream[i]`` resumes at any batch.

    Args:
        series: Values ``(time, columns)``, or anything that ``torch.as_tensor`` takes.
        window: Values of each column that a forecast is made from (L).
        horizon: Values of each column that are forecast (H).
        every: Steps of time from one batch to the next.
        targets: The columns that are forecast, by index; all by default.
    """

    def __init__(
        self,
        series: Any,
        *,
        window: int,
        horizon: int,
        every: int = 1,
        targets: Sequence[int] | None = None,
    ) -> None:
        values = torch.as_tensor(series)
        if values.dim() != 2 or not values.is_floating_point():
            raise DataError(
                f"series is {values.dtype} of shape {tuple(values.shape)}. "
                "Must be floating point (time, columns)."
            )
        require_sizes(window=window, horizon=horizon, every=every)
        if len(values) < window + horizon:
            raise DataError(
                f"series has {len(values)} values a column. Must have at least {window + horizon}: "
                f"a window of {window} and a horizon of {horizon}."
            )
        columns = range(values.shape[1])
        chosen = list(columns if targets is None else targets)
        if not chosen or not set(chosen) <= set(columns):
            raise ConfigError(f"Invalid {targets=}. Must be columns from 0 to {columns[-1]}.")
        self.window, self.horizon, self.every = window, horizon, every
        self.targets = tuple(chosen)
        self._inputs = values.unfold(0, window, 1)  # row i ends at time i + window − 1
        self._outputs = values[window:, chosen].unfold(0, horizon, 1)  # row i is what follows

    def __len__(self) -> int:
        """Batches."""
        return -(-len(self._outputs) // self.every)

    @overload
    def __getitem__(self, index: int) -> ForecastBatch: ...

    @overload
    def __getitem__(self, index: slice) -> list[ForecastBatch]: ...

    def __getitem__(self, index: int | slice) -> ForecastBatch | list[ForecastBatch]:
        """A batch, or those of a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"Batch {index} of {len(self)}.")
        first = index % len(self) * self.every  # the window that ends at the time of the batch
        ended = max(0, first - self.horizon + 1)  # windows whose horizon has ended
        given = max(0, first - self.every - self.horizon + 1)  # those of the batch before
        return ForecastBatch(
            time=first + self.window - 1,
            known=self._pairs(given, ended) if ended > given else None,
            x=self._inputs[first : min(first + self.every, len(self._outputs))].flatten(1),
            y=self._outputs[first : first + self.every].flatten(1),
        )

    def _pairs(self, start: int, stop: int) -> Labelled:
        return self._inputs[start:stop].flatten(1), self._outputs[start:stop].flatten(1)
