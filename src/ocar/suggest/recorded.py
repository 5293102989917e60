"""A recorded stream of which a few samples are held out.

Of every few samples in a row one is held out, at a random place that is the same in every pass. It
is never learned. It counts from the batch on that it came with.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

import torch

from ocar.errors import InputError
from ocar.rng import make_generator
from ocar.streams.base import Labelled
from ocar.streams.iterable import Pairs, as_labelled
from ocar.structure import Inputs, apply, equal

RAREST, DENSEST = 20, 5
"""One sample in 20 is held out; in short streams more, at most one in 5."""

ENOUGH = 200
"""Held-out samples that are enough: the standard error of an accuracy is then under 4 points."""


class Recorded:
    """Batches that can be read again and again.

    Args:
        batches: Pairs ``(x, y)``; every pass must give the same.

    Attributes:
        regression: Whether there are targets instead of labels.
        length: Batches in all.
        one_in: One sample in so many is held out.

    Raises:
        InputError: There are no batches, they cannot be read again, or they are of a wrong kind.
    """

    def __init__(self, batches: Pairs) -> None:
        self._batches = batches
        self._check_repeats()
        x, y = next(self._read(), (None, None))
        if x is None or y is None:
            raise InputError("The stream has no batches. Must have at least one.")
        self.regression = y.is_floating_point()
        wanted = 2 if self.regression else 1
        if y.dim() != wanted or y.is_complex():
            raise InputError(
                f"Invalid y of {y.dtype} and shape {tuple(y.shape)}. Labels must be integers (n,), "
                "targets of a regression floating point (n, outputs)."
            )
        self.length = operator.length_hint(batches) or sum(1 for _ in self._read())
        self.one_in = min(RAREST, max(DENSEST, self.length * len(y) // ENOUGH))

    def first(self, count: int) -> Iterator[tuple[Labelled, Labelled]]:
        """Samples to learn and samples that are held out, for each of the first batches."""
        places = torch.randint(self.one_in, (1024,), generator=make_generator(0, "held-out"))
        seen = 0
        for x, y in itertools.islice(self._read(), count):
            at = torch.arange(seen, seen + len(y))
            held = at % self.one_in == places[at // self.one_in % len(places)]
            seen += len(y)
            yield (x[~held], y[~held]), (x[held], y[held])

    def _read(self) -> Iterator[Labelled]:
        for index, pair in enumerate(self._batches):
            yield as_labelled(pair, f"Batch {index}")

    def _check_repeats(self) -> None:
        """Raise unless two passes begin with the same batch."""
        if iter(self._batches) is self._batches:
            raise InputError(
                f"A {type(self._batches).__name__} can be read only once, and every trial reads "
                "all batches. Give list(batches), or an object whose __iter__ begins again."
            )
        one, other = (next(self._read(), None) for _ in range(2))
        same = one is other or (
            one is not None and other is not None and all(map(_same, one, other))
        )
        if not same:
            raise InputError(
                f"Two passes over this {type(self._batches).__name__} begin with different "
                "batches. A recorded stream must always give the same: do not shuffle, or give "
                "list(batches)."
            )


def _same(one: Inputs, other: Inputs) -> bool:
    """Whether two batches hold the same, NaN too: the learner says that it is there."""
    return equal(apply(torch.nan_to_num, one), apply(torch.nan_to_num, other))
