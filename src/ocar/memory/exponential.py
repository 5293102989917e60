"""A sample of the stream that forgets old samples exponentially."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ocar.config import require
from ocar.memory.reservoir import ReservoirMemory


class ExponentialMemory(ReservoirMemory):
    """Keeps a sample of the stream in which the age of samples is distributed exponentially.

    Aggarwal, "On biased reservoir sampling in the presence of stream evolution", VLDB 2006. It is a
    reservoir for the first h = ``horizon`` samples. Each later one replaces a random slot with
    probability ``capacity`` / h, so that a sample of age a is in the memory with probability

        capacity / h · (1 − 1/h)ᵃ.

    For streams whose concepts are replaced, but not at once.

    Args:
        capacity: Number of slots, at least 1.
        horizon: h, the mean age of the stored samples in the long run. At least ``capacity``, which
            is the default.
        extras: Names of what is stored beside x and y.
        seed: The seed of the experiment.
        device: Where the stored samples live.
    """

    def __init__(
        self,
        capacity: int,
        *,
        horizon: int | None = None,
        extras: Sequence[str] = (),
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(capacity, extras=extras, seed=seed, device=device)
        self.horizon = capacity if horizon is None else horizon
        require("horizon", horizon, self.horizon >= capacity, f"at least the capacity, {capacity}")
