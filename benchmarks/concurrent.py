"""Five runs at once on one GPU against one: as ``ocar run --seeds 0 1 2 3 4`` does them.

Each run has a thread and a stream of its own, and is evaluated after every batch.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from benchmarks.results import Result, Skipped, compare
from benchmarks.setup import Setup, noise, slim_learner, stream_batch
from benchmarks.timing import Side, take_turns

CLASSES, RUNS = 100, 5
BLOCK = 32
"""Evaluations that are waited for together, as in a run."""


class _Run:
    """A run of OCAR with an evaluation after every batch.

    Args:
        seed: Its seed.
        setup: On what.
    """

    def __init__(self, seed: int, setup: Setup) -> None:
        self._batches = setup.run_batches
        self._stream = torch.cuda.Stream(setup.device)
        with torch.cuda.stream(self._stream):
            learner = slim_learner("ocar", classes=CLASSES, setup=setup, seed=seed)
            self._learn = stream_batch(learner, classes=CLASSES, seed=seed)
            x, y = noise(setup.validation, classes=CLASSES, device=setup.device, seed=seed + 2)
            self._labels = y.to(setup.device)
            self._predict = learner.predict_repeatedly(x)
        self._stream.synchronize()

    def __call__(self) -> None:
        """Learn so many batches, evaluate after each, look at the numbers now and then."""
        with torch.cuda.stream(self._stream):
            pending: list[Tensor] = []
            for index in range(self._batches):
                self._learn()
                pending.append(self._predict(len(self._labels), self._count))
                if (index + 1) % BLOCK == 0 or index + 1 == self._batches:
                    self._predict.wait()
                    torch.stack(pending).tolist()
                    pending.clear()

    def _count(self, logits: Tensor) -> Tensor:
        return (logits.argmax(dim=1) == self._labels).sum()


def measure_concurrent(setup: Setup) -> Iterator[Result]:
    """Time of five runs at once over the time of one."""
    if setup.device.type != "cuda":
        yield Skipped(name="five at once", reason="needs a GPU: on a CPU runs are processes")
        return
    # PyTorch loads its linear algebra on first use, and fails if two threads come at once.
    torch.linalg.cholesky(torch.eye(2, device=setup.device))
    gc.collect()
    torch.cuda.empty_cache()  # of what was measured before, which should not count
    torch.cuda.reset_peak_memory_stats(setup.device)
    runs = [_Run(seed, setup) for seed in range(RUNS)]
    with ThreadPoolExecutor(RUNS) as pool:
        one = Side("one run", lambda: pool.submit(runs[0]).result())
        five = Side("five at once", lambda: [f.result() for f in [pool.submit(r) for r in runs]])
        times = take_turns(
            [five, one], turns=setup.turns, least=0.0, device=setup.device, warm_up=1
        )
    memory = torch.cuda.max_memory_reserved(setup.device) / 2**30
    note = (
        f"OCAR, {setup.network}, {CLASSES} classes, {setup.validation} samples predicted after "
        f"each batch; {memory:.1f} GiB of device memory in all"
    )
    yield compare(
        "five at once",
        (five.name, times[five.name]),
        (one.name, times[one.name]),
        unit=f"s for {setup.run_batches} batches",
        note=note,
    )
