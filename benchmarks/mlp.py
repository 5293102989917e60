"""A stream of digits on the CPU: learners against a bare loop and Avalanche; serving.

The stream has the shape of Split-MNIST: an MLP 784-100-100, ten new and ten replayed digits a step,
three passes over a batch, a reservoir of 100. On so small a network a library's overhead shows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.libraries import avalanche_stream
from benchmarks.results import Result, Skipped, Target, compare
from benchmarks.setup import BATCH, Setup, learn_batches
from benchmarks.timing import take_turns
from ocar.errors import MissingPackageError
from ocar.learner import Learner
from ocar.methods.registry import make_settings, preset_settings
from ocar.models import make_model
from ocar.rng import make_generator
from ocar.serving import Serving

PRESET, CLASSES, MEMORY, IMAGE = "split-mnist", 10, 100, (1, 28, 28)
PREPARED = 64
"""Batches that are prepared before the measurement and repeated in it."""

BLOCK = 20
"""Batches of one call where a thread asks for predictions: its start should not count."""

STREAM = "MLP 784-100-100, 10 new and 10 replayed digits, three passes"
ON_CPU = "is measured on the CPU: python -m benchmarks --device cpu"


def measure_mlp(setup: Setup) -> Iterator[Result]:
    """ER over the bare loop, OCAR over ER, Avalanche's replay over ER."""
    if setup.on_gpu:
        yield Skipped(name="mlp", reason=ON_CPU)
        return
    model, lr = make_model("mlp", image_shape=IMAGE), preset_settings(PRESET, "er")["lr"]
    bare = BareReplay(model, *digits(MEMORY), lr=lr, replay_batch=BATCH, passes=3)
    sides = {
        "a bare PyTorch loop": learn_batches(bare, *digits()),
        "ER": mlp_batch(mlp_learner("er")),
        "OCAR": mlp_batch(mlp_learner("ocar")),
    }
    missing = ""
    try:
        sides["Avalanche's replay"] = avalanche_stream(*digits(), memory=MEMORY, lr=lr)
    except MissingPackageError as error:
        missing = str(error)
    times = take_turns(sides, setup)
    note = f"{STREAM}, reservoir of 100"
    for name, above, below, value in (
        ("mlp, the floor", "ER", "a bare PyTorch loop", 1.3),
        ("mlp, OCAR", "OCAR", "ER", 4),
    ):
        target = Target(relation="at most", value=value) if setup.usual else None
        yield compare(name, times, above, below, note=note, target=target)
    if missing:
        yield Skipped(name="mlp, Avalanche", reason=missing)
    else:
        yield compare("mlp, Avalanche", times, "Avalanche's replay", "ER", note=note)


def measure_serving(setup: Setup) -> Iterator[Result]:
    """Learning while predictions are published or asked for, over learning by itself.

    ER on a tiny network is the fastest learner, so that copies weigh most. A thread that asks
    without a pause also shares the interpreter with the learner, which costs more than the copies.
    """
    if setup.on_gpu:
        yield Skipped(name="serving", reason=ON_CPU)
        return
    published, asked, locked = (mlp_learner("er") for _ in range(3))
    serving, answers = Serving(published), Serving(asked)
    alone = "learning alone"
    sides = {
        alone: _block(mlp_learner("er")),
        "publishing every batch": _block(published),
        "and one thread that asks": _block(asked, answers.predict),
        "one thread that asks the learner itself": _block(locked, locked.predict),
    }
    times = take_turns(sides, setup)
    assert serving.predict(digits(1)[0]).batches == published.batches
    names = ("serving, publishing", "serving, one reader", "serving, a reader that waits")
    note = f"ER, {STREAM}; {BLOCK} batches a call"
    for name, side in zip(names, list(sides)[1:], strict=True):
        yield compare(name, times, side, alone, unit=f"s for {BLOCK} batches", note=note)


def _block(learner: Learner, ask: Callable[[Tensor], object] | None = None) -> Callable[[], None]:
    """A function that learns some batches at each call.

    Meanwhile a thread asks for one prediction after another, where there is an ``ask``.
    """
    learn = mlp_batch(learner)

    def block() -> None:
        for _ in range(BLOCK):
            learn()

    def block_while_asked() -> None:
        question, over = digits(1)[0], threading.Event()

        def loop() -> None:
            while ask is not None and not over.is_set():
                ask(question)

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            block()
        finally:
            over.set()
            thread.join()

    return block if ask is None else block_while_asked


def digits(count: int = PREPARED * BATCH) -> tuple[Tensor, Tensor]:
    """Images as sparse as MNIST's, ``(count, 1, 28, 28)`` uint8, and their labels.

    In 1,000 digits of MNIST some 600 pixels are ever inked, about as many as lie inside a margin of
    2; one digit inks 19 % of all pixels.
    """
    generator = torch.Generator().manual_seed(0)
    inside = functional.pad(torch.ones(1, 24, 24), (2, 2, 2, 2))
    share = 0.19 * inside.numel() / inside.sum() * inside
    inked = torch.rand(count, *IMAGE, generator=generator) < share
    ink = torch.randint(1, 256, (count, *IMAGE), generator=generator, dtype=torch.uint8)
    return ink * inked, torch.arange(count) % CLASSES


def mlp_learner(method: str) -> Learner:
    """A learner at the end of Split-MNIST, with a full memory."""
    fixed = {"memory_kind": "reservoir", "classes": range(CLASSES)}
    settings, transform = make_settings(method, **{**preset_settings(PRESET, method), **fixed})
    learner = Learner(make_model("mlp", image_shape=IMAGE), settings, transform=transform)
    learner.remember(*digits(MEMORY))
    return learner


def mlp_batch(learner: Learner) -> Callable[[], object]:
    """A function that learns one batch of digits at each call."""
    return learn_batches(learner, *digits())


class BareReplay:
    """Experience replay without a library: no checks, no growing head, no state, no report.

    The memory has samples ``(memory, ...)`` uint8 and their labels; a batch takes ``passes`` steps.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, lr: float, replay_batch: int, passes: int
    ) -> None:
        self.model = model.train()
        self.x, self.y, self.seen = x.clone(), y.clone(), len(y)
        self.lr, self.replay_batch, self.passes = lr, replay_batch, passes
        self._generator = make_generator(0, "memory")

    def learn(self, x: Tensor, y: Tensor) -> Tensor:
        """Take the steps of a batch ``(n, ...)`` uint8, offer it to the memory; the last loss."""
        parameters = list(self.model.parameters())
        for _ in range(self.passes):
            slots = torch.randperm(len(self.y), generator=self._generator)[: self.replay_batch]
            xs, ys = torch.cat([x, self.x[slots]]), torch.cat([y, self.y[slots]])
            for parameter in parameters:
                parameter.grad = None
            loss = functional.cross_entropy(self.model(xs.float().div_(255)), ys)
            loss.backward()
            with torch.no_grad():
                weights: list[Tensor] = list(parameters)
                grads = [p.grad for p in parameters if p.grad is not None]
                torch._foreach_add_(weights, grads, alpha=-self.lr)
        # Vitter's algorithm R: a sample replaces the slot that it draws, if that slot exists.
        places = self.seen + 1 + torch.arange(len(y))
        uniform = torch.rand(len(y), dtype=torch.float64, generator=self._generator)
        slots = (uniform * places).long()
        (rows,) = torch.nonzero(slots < len(self.y), as_tuple=True)
        if len(rows):
            self.x[slots[rows]], self.y[slots[rows]] = x[rows], y[rows]
        self.seen += len(y)
        return loss.detach()
