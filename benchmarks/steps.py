"""A stream batch of OCAR against one of ER, and what more classes cost."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.results import Result, Target, compare
from benchmarks.setup import Setup, slim_learner, stream_batch
from benchmarks.timing import Side, take_turns

CLASSES = (5, 50, 100)


def measure_steps(setup: Setup) -> Iterator[Result]:
    """OCAR over ER at 5, 50 and 100 classes, and OCAR at 100 classes over OCAR at 5."""
    sides = []
    for classes in CLASSES:
        for method in ("er", "ocar"):
            learner = slim_learner(method, classes=classes, setup=setup)
            name = f"{method.upper()} at {classes} classes"
            sides.append(Side(name, stream_batch(learner, classes=classes)))
    times = take_turns(sides, turns=setup.turns, least=setup.least, device=setup.device)
    note = f"{setup.network}, 10 new and 10 replayed images, three passes, memory 2000"
    on_gpu = setup.device.type == "cuda"
    for classes in CLASSES:
        above, below = (f"{method} at {classes} classes" for method in ("OCAR", "ER"))
        stated = setup.usual and (on_gpu or classes == max(CLASSES))
        yield compare(
            f"step, {classes} classes",
            (above, times[above]),
            (below, times[below]),
            note=note,
            target=Target(relation="at most", value=2) if stated else None,
        )
    few, many = (f"OCAR at {classes} classes" for classes in (min(CLASSES), max(CLASSES)))
    yield compare(
        "more classes",
        (many, times[many]),
        (few, times[few]),
        note=note,
        target=Target(relation="at most", value=1.1) if setup.usual and on_gpu else None,
    )
