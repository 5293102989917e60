"""What it costs a learner to be asked by other threads while it learns.

ER on the stream of :mod:`benchmarks.mlp`, the fastest learner on a tiny network: nowhere is the
part of the copies larger. A thread that asks without a pause shares the interpreter with the one
that learns, so what it costs is mostly not the copies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from benchmarks.mlp import digits, mlp_batch, mlp_learner
from benchmarks.results import Result, Skipped, compare
from benchmarks.setup import Setup
from benchmarks.timing import Side, take_turns
from ocar.learner import Learner
from ocar.serving import Serving

BLOCK = 20
"""Batches of a call: starting a thread that asks should not count."""

NOTE = f"ER, MLP 784-100-100, 10 new and 10 replayed digits, three passes; {BLOCK} batches a call"


def measure_serving(setup: Setup) -> Iterator[Result]:
    """Publishing, and a thread that asks all the time, over learning alone."""
    if setup.device.type != "cpu":
        yield Skipped(name="serving", reason="is measured on the CPU: ocar bench --device cpu")
        return
    alone = Side("learning alone", _block(mlp_learner("er")))
    published = mlp_learner("er")
    serving = Serving(published)
    publishing = Side("publishing every batch", _block(published))
    asked = mlp_learner("er")
    answers = Serving(asked)
    asking = Side("and one thread that asks", _block(asked, answers.predict))
    locked = mlp_learner("er")
    waiting = Side("one thread that asks the learner itself", _block(locked, locked.predict))
    sides = [alone, publishing, asking, waiting]
    times = take_turns(sides, turns=setup.turns, least=setup.least, device=setup.device)
    assert serving.predict(digits(1)[0]).batches == published.batches
    for name, side in (
        ("serving, publishing", publishing),
        ("serving, one reader", asking),
        ("serving, a reader that waits", waiting),
    ):
        yield compare(
            name,
            (side.name, times[side.name]),
            (alone.name, times[alone.name]),
            unit=f"s for {BLOCK} batches",
            note=NOTE,
        )


def _block(learner: Learner, ask: Callable[[Tensor], object] | None = None) -> Callable[[], None]:
    """What learns some batches when it is called, while a thread asks if it is to."""
    learn, (question, _) = mlp_batch(learner), digits(1)

    def call() -> None:
        with _asking(ask, question):
            for _ in range(BLOCK):
                learn()

    return call


@contextmanager
def _asking(ask: Callable[[Tensor], object] | None, question: Tensor) -> Iterator[None]:
    """Inside it a thread asks the same question without a pause."""
    if ask is None:
        yield
        return
    over = threading.Event()

    def loop() -> None:
        while not over.is_set():
            ask(question)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
