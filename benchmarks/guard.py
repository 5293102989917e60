"""What the guard costs: the same batches with it and without."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.results import Result, compare
from benchmarks.setup import Setup, slim_learner, stream_batch
from benchmarks.timing import Side, take_turns
from ocar.guard import Guard

CLASSES = 100
METHODS = ("er", "ocar", "ocar-ace")
GUARDS = {"guarded": Guard(), "not guarded": None}


def measure_guard(setup: Setup) -> Iterator[Result]:
    """With over without, for methods with and without a bound on their steps."""
    sides = [
        Side(
            f"{method.upper()}, {kind}",
            stream_batch(
                slim_learner(method, classes=CLASSES, setup=setup, guard=guard), classes=CLASSES
            ),
        )
        for method in METHODS
        for kind, guard in GUARDS.items()
    ]
    times = take_turns(sides, turns=setup.turns, least=setup.least, device=setup.device)
    for method in METHODS:
        above, below = (f"{method.upper()}, {kind}" for kind in GUARDS)
        yield compare(
            f"guard of {method.upper()}",
            (above, times[above]),
            (below, times[below]),
            note=f"{setup.network}, {CLASSES} classes",
        )
