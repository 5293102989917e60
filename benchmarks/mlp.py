"""A stream of digits on the CPU: our learners against a bare loop and against Avalanche.

The stream is that of Split-MNIST: an MLP 784-100-100, ten new and ten replayed digits a step, three
passes over a batch, a reservoir of 100. With so small a network a library shows what it costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.avalanche_stream import avalanche_stream
from benchmarks.bare_loop import BareReplay
from benchmarks.results import Result, Skipped, Target, compare
from benchmarks.setup import Setup
from benchmarks.timing import Side, take_turns
from ocar.errors import MissingPackageError
from ocar.learner import Learner
from ocar.methods.registry import make_settings, preset_settings
from ocar.models import make_model

PRESET, CLASSES, MEMORY, BATCH = "split-mnist", 10, 100, 10
IMAGE = (1, 28, 28)
PREPARED = 64
"""Batches that are made before the measuring begins and then come again and again."""

NOTE = "MLP 784-100-100, 10 new and 10 replayed digits, three passes, reservoir of 100"


def measure_mlp(setup: Setup) -> Iterator[Result]:
    """ER over the bare loop, OCAR over ER, Avalanche's replay over ours."""
    if setup.device.type != "cpu":
        yield Skipped(name="mlp", reason="is measured on the CPU: ocar bench --device cpu")
        return
    bare = Side("a bare PyTorch loop", bare_batch())
    er, ocar = (Side(method.upper(), mlp_batch(mlp_learner(method))) for method in ("er", "ocar"))
    sides = [bare, er, ocar]
    problem = ""
    try:
        theirs = Side("Avalanche's replay", avalanche_stream(*digits(), memory=MEMORY))
        sides.append(theirs)
    except MissingPackageError as error:
        problem = str(error)
    times = take_turns(sides, turns=setup.turns, least=setup.least, device=setup.device)
    targets = [Target(relation="at most", value=value) for value in (1.3, 4)]
    for name, above, below, target in (
        ("mlp, the floor", er, bare, targets[0]),
        ("mlp, OCAR", ocar, er, targets[1]),
    ):
        yield compare(
            name,
            (above.name, times[above.name]),
            (below.name, times[below.name]),
            note=NOTE,
            target=target if setup.usual else None,
        )
    if problem:
        yield Skipped(name="mlp, Avalanche", reason=problem)
        return
    yield compare(
        "mlp, Avalanche", (theirs.name, times[theirs.name]), (er.name, times[er.name]), note=NOTE
    )


def digits(count: int = PREPARED * BATCH) -> tuple[Tensor, Tensor]:
    """Images as sparse as MNIST's, ``(count, 1, 28, 28)`` uint8, and their labels.

    Of 1,000 digits of MNIST some 600 pixels are ever inked, about as many as there are without a
    margin of 2, and 19 % of all in one of them.
    """
    generator = torch.Generator().manual_seed(0)
    inside = functional.pad(torch.ones(1, 24, 24), (2, 2, 2, 2))
    inked = (
        torch.rand(count, *IMAGE, generator=generator)
        < 0.19 * inside.numel() / inside.sum() * inside
    )
    ink = torch.randint(1, 256, (count, *IMAGE), generator=generator, dtype=torch.uint8)
    return ink * inked, torch.arange(count) % CLASSES


def mlp_learner(method: str) -> Learner:
    """A learner at the end of Split-MNIST, with a full memory."""
    values = {
        **preset_settings(PRESET, method),
        "memory_kind": "reservoir",
        "classes": range(CLASSES),
    }
    settings, transform = make_settings(method, **values)
    learner = Learner(make_model("mlp", image_shape=IMAGE), settings, transform=transform)
    learner.remember(*digits(MEMORY))
    return learner


def mlp_batch(learner: Learner) -> Callable[[], object]:
    """What learns one batch of the stream when it is called."""
    batches = _batches()
    return lambda: learner.learn(*next(batches))


def bare_batch() -> Callable[[], object]:
    """The same in a bare loop."""
    model = make_model("mlp", image_shape=IMAGE)
    lr = preset_settings(PRESET, "er")["lr"]
    replay = BareReplay(model, *digits(MEMORY), lr=lr, replay_batch=BATCH, passes=3)
    batches = _batches()
    return lambda: replay.learn(*next(batches))


def _batches() -> Iterator[tuple[Tensor, Tensor]]:
    x, y = digits()
    return itertools.cycle(zip(x.split(BATCH), y.split(BATCH), strict=True))
