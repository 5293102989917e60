"""OCAR with different roots of the Fisher on the first tasks of Split-CIFAR100.

    python experiments/fisher_roots.py --roots "sketched(4)" "sketched(4, independent)" --tasks 10

Train-mode BatchNorm couples the samples of a batch, so roots with signs shared
by the batch and roots drawn for each sample estimate different matrices (see
``ocar.curvature.fisher``). This measures what that is worth, with the published
settings, on validation data. One line of JSON a run goes to the output file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import ocar
from ocar.evaluate import Evaluated, Learned
from ocar.streams.benchmarks import get_benchmark

BENCHMARK = "split-cifar100"


def one_run(root: str, seed: int, tasks: int, every: int, device: str) -> dict[str, Any]:
    """Anytime accuracy over the first tasks with one root and seed."""
    benchmark = get_benchmark(BENCHMARK)
    stream = ocar.make_stream(BENCHMARK, seed=seed, device=device)
    model = ocar.make_model(benchmark.model, image_shape=benchmark.image_shape, seed=seed)
    learner = ocar.make_learner("ocar", model.to(device), preset=BENCHMARK, fisher=root, seed=seed)
    start = time.perf_counter()
    anytime: list[float] = []
    after_task: dict[int, float] = {}
    batches = 0
    for event in ocar.evaluate(learner, stream, every=every):
        if event.__class__ is Learned:
            batches += 1
        elif isinstance(event, Evaluated):
            if event.task >= tasks:
                break
            anytime.append(event.accuracy)
            after_task[event.task] = event.accuracy
    return {
        "benchmark": BENCHMARK,
        "root": root,
        "seed": seed,
        "tasks": tasks,
        "evaluated_every": every,
        "aaa": sum(anytime) / len(anytime),
        "after_task": [round(value, 4) for value in after_task.values()],
        "seconds": round(time.perf_counter() - start, 1),
        "batches": batches,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--roots", nargs="+", default=["sketched(4)", "sketched(4, independent)"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--every", type=int, default=1, help="evaluate after every k-th batch")
    parser.add_argument("--out", type=Path, default=Path("results/fisher-roots/runs.jsonl"))
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        for root in given.roots:
            run = one_run(root, seed, given.tasks, given.every, device)
            print(json.dumps(run), flush=True)
            with given.out.open("a") as file:
                file.write(json.dumps(run) + "\n")


if __name__ == "__main__":
    main()
