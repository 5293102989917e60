"""A stream batch on Slim-ResNet18: OCAR against ER, CUDA graphs against eager steps, the guard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.results import Ratio, Result, Skipped, Target, compare
from benchmarks.setup import BATCH, Setup, noise, slim_learner, stream_batch
from benchmarks.timing import take_turns
from ocar.guard import Guard

CLASSES = (5, 50, 100)

_NO_HEAD = {"closed_form_head": False}
_NO_MIRROR = {"mirror": "no", **_NO_HEAD}
_TEN = {"replay_batch": 10, **_NO_MIRROR}
SLOW_PARTS: dict[str, dict[str, Any]] = {
    "+ slow weights that predict": {"distillation": 0.0, **_TEN},
    "+ distillation": _TEN,
    "+ 20 replayed samples": _NO_MIRROR,
    "+ the mirror image": _NO_HEAD,
    "+ a head in closed form": {},
}
"""The parts of ``ocar-slow``, one more in each row, and what is changed for lack of the others."""


def measure_steps(setup: Setup) -> Iterator[Result]:
    """OCAR over ER at 5, 50 and 100 classes, and OCAR at 100 classes over OCAR at 5."""
    sides = {
        f"{method.upper()} at {classes} classes": stream_batch(
            slim_learner(method, classes=classes, setup=setup), classes=classes
        )
        for classes in CLASSES
        for method in ("er", "ocar")
    }
    times = take_turns(sides, setup)
    note = f"{setup.network}, 10 new and 10 replayed images, three passes, memory 2000"
    for classes in CLASSES:
        has_target = setup.usual and (setup.on_gpu or classes == max(CLASSES))
        yield compare(
            f"step, {classes} classes",
            times,
            f"OCAR at {classes} classes",
            f"ER at {classes} classes",
            note=note,
            target=Target(relation="at most", value=2) if has_target else None,
        )
    yield compare(
        "more classes",
        times,
        f"OCAR at {max(CLASSES)} classes",
        f"OCAR at {min(CLASSES)} classes",
        note=note,
        target=Target(relation="at most", value=1.1) if setup.usual and setup.on_gpu else None,
    )


def measure_slow(setup: Setup) -> Iterator[Result]:
    """OCAR with one part of ocar-slow after another, over OCAR: to learn, and to predict.

    To predict is to ask for ten samples after each batch, so that the closed-form head is solved
    for each time.
    """
    classes = max(CLASSES)
    learners = {"OCAR": slim_learner("ocar", classes=classes, setup=setup)}
    for name, off in SLOW_PARTS.items():
        learners[name] = slim_learner("ocar-slow", classes=classes, setup=setup, changed=off)
    learn = {name: stream_batch(own, classes=classes) for name, own in learners.items()}
    sample, _ = noise(BATCH, classes=classes, device=setup.device)

    def then_predict(name: str) -> None:
        learn[name]()
        learners[name].predict(sample)

    both = {name: partial(then_predict, name) for name in learners}
    note = f"{setup.network}, {classes} classes"
    target = Target(relation="at most", value=1.5) if setup.usual and setup.on_gpu else None
    for title, sides in (("to learn", learn), ("to learn and predict", both)):
        times = take_turns(sides, setup)
        for name in SLOW_PARTS:
            whole = not SLOW_PARTS[name] and sides is learn
            yield compare(
                f"{name}, {title}", times, name, "OCAR", note=note, target=target if whole else None
            )


def measure_graphs(setup: Setup) -> Iterator[Result]:
    """Eager steps over steps recorded as CUDA graphs, for ER and OCAR."""
    if not setup.on_gpu:
        yield Skipped(name="recorded", reason="needs a GPU: CUDA graphs are for CUDA devices")
        return
    variants = {"eager": {"record": False}, "recorded": {"record": True}}
    yield from _compare_variants(setup, "recorded {}", ("er", "ocar"), variants)


def measure_guard(setup: Setup) -> Iterator[Result]:
    """With the guard over without it, for methods with and without a bound on their steps."""
    variants: dict[str, dict[str, Guard | None]] = {
        "guarded": {"guard": Guard()},
        "not guarded": {"guard": None},
    }
    yield from _compare_variants(setup, "guard of {}", ("er", "ocar", "ocar-ace"), variants)


def _compare_variants(
    setup: Setup, name: str, methods: Sequence[str], variants: Mapping[str, Mapping[str, Any]]
) -> Iterator[Ratio]:
    """The first variant over the second, for each method; ``name`` has braces for the method."""
    classes = max(CLASSES)
    sides = {
        f"{method.upper()}, {variant}": stream_batch(
            slim_learner(method, classes=classes, setup=setup, **options), classes=classes
        )
        for method in methods
        for variant, options in variants.items()
    }
    times = take_turns(sides, setup)
    for method in map(str.upper, methods):
        above, below = (f"{method}, {variant}" for variant in variants)
        note = f"{setup.network}, {classes} classes"
        yield compare(name.format(method), times, above, below, note=note)
