"""Steps that are captured as CUDA graphs against the same steps one kernel at a time."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.results import Result, Skipped, compare
from benchmarks.setup import Setup, slim_learner, stream_batch
from benchmarks.timing import Side, take_turns

CLASSES = 100


def measure_graphs(setup: Setup) -> Iterator[Result]:
    """Eager over captured, for ER and OCAR at 100 classes."""
    if setup.device.type != "cuda":
        yield Skipped(name="captured", reason="needs a GPU: steps are captured on CUDA only")
        return
    sides = []
    for method in ("er", "ocar"):
        for kind in ("eager", "captured"):
            capture = kind == "captured"
            learner = slim_learner(method, classes=CLASSES, setup=setup, capture=capture)
            name = f"{method.upper()}, {kind}"
            sides.append(Side(name, stream_batch(learner, classes=CLASSES)))
    times = take_turns(sides, turns=setup.turns, least=setup.least, device=setup.device)
    for method in ("ER", "OCAR"):
        above, below = f"{method}, eager", f"{method}, captured"
        yield compare(
            f"captured {method}",
            (above, times[above]),
            (below, times[below]),
            note=f"{setup.network}, {CLASSES} classes",
        )
