"""Five runs at once on one GPU against one, as ``ocar run --seeds 0 1 2 3 4`` does them.

Each run has its own thread and CUDA stream, and is evaluated after every batch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from benchmarks.results import Result, Skipped, compare
from benchmarks.setup import Setup, noise, slim_learner, stream_batch
from benchmarks.timing import take_turns

CLASSES, RUNS = 100, 5
BLOCK = 32
"""Evaluations whose numbers are read together, as in a run."""


def _make_run(seed: int, setup: Setup) -> Callable[[], None]:
    """A run of OCAR that is evaluated after every batch."""
    stream = torch.cuda.Stream(setup.device)
    with torch.cuda.stream(stream):
        learner = slim_learner("ocar", classes=CLASSES, setup=setup, seed=seed)
        learn = stream_batch(learner, classes=CLASSES, seed=seed)
        x, y = noise(setup.validation, classes=CLASSES, device=setup.device, seed=seed + 2)
        labels = y.to(setup.device)
        predict = learner.predict_repeatedly(x)
    stream.synchronize()

    def count(logits: Tensor) -> Tensor:
        return (logits.argmax(dim=1) == labels).sum()

    def run() -> None:
        with torch.cuda.stream(stream):
            pending: list[Tensor] = []
            for index in range(setup.run_batches):
                learn()
                pending.append(predict(len(labels), count))
                if (index + 1) % BLOCK == 0 or index + 1 == setup.run_batches:
                    predict.wait()
                    torch.stack(pending).tolist()
                    pending.clear()

    return run


def measure_concurrent(setup: Setup) -> Iterator[Result]:
    """Time of five runs at once over the time of one."""
    if not setup.on_gpu:
        yield Skipped(name="five at once", reason="needs a GPU: on a CPU runs are processes")
        return
    # PyTorch loads its linear algebra at first use, which fails in two threads at once.
    torch.linalg.cholesky(torch.eye(2, device=setup.device))
    gc.collect()
    torch.cuda.empty_cache()  # memory of earlier measurements should not count
    torch.cuda.reset_peak_memory_stats(setup.device)
    runs = [_make_run(seed, setup) for seed in range(RUNS)]
    with ThreadPoolExecutor(RUNS) as pool:
        sides = {
            "five at once": lambda: [f.result() for f in [pool.submit(r) for r in runs]],
            "one run": lambda: pool.submit(runs[0]).result(),
        }
        times = take_turns(sides, setup, least=0.0, warm_up=1)
    memory = torch.cuda.max_memory_reserved(setup.device) / 2**30
    yield compare(
        "five at once",
        times,
        "five at once",
        "one run",
        unit=f"s for {setup.run_batches} batches",
        note=(
            f"OCAR, {setup.network}, {CLASSES} classes, {setup.validation} samples predicted after "
            f"each batch; {memory:.1f} GiB of device memory in all"
        ),
    )
