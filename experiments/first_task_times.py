"""Seconds of training on the first task of Split-CIFAR100, each method in a process of its own.

    python experiments/first_task_times.py --device cuda --out runs/times
    ocar keep runs/times
    ocar paper times

A process pays for its start: libraries are loaded, kernels compiled, memory is asked for. So each
process first learns the task into a folder that is thrown away. The processes import their
libraries together, and learn one after another. They need none of the ``ocar`` command's packages.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import deque
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

from ocar.events import Finished
from ocar_lab.cli import CUDA_DEFAULTS
from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.loop import run_events
from ocar_lab.paper.times import BENCHMARK
from ocar_lab.published import FIRST_TASK_SECONDS
from ocar_lab.runs import is_finished


def measure(config: RunConfig, seeds: list[int], out: Path, begin: Event) -> None:
    """When it may begin: learn the first task once for nothing, then once for each seed."""
    begin.wait()
    configs = [replace(config, seed=seed) for seed in seeds]
    if any(not is_finished(out / own.folder()) for own in configs):
        with tempfile.TemporaryDirectory() as folder:
            deque(run_events(configs[0], out=folder), maxlen=0)
    for own in configs:
        ended = [event for event in run_events(own, out=out) if isinstance(event, Finished)]
        seconds = ended[0].summary.first_task_seconds if ended else None
        text = "already finished" if seconds is None else f"{seconds:.2f} s"
        print(f"{own.name} seed {own.seed}: {text}", flush=True)


def main() -> int:
    """Parse, and start a process for each method; 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("methods", nargs="*", default=[*FIRST_TASK_SECONDS])
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, default=Path("runs/times"))
    given = parser.parse_args()
    for name, value in CUDA_DEFAULTS.items():
        os.environ.setdefault(name, value)
    configs = [
        RunConfig(
            benchmark=BENCHMARK,
            method=method,
            device=given.device,
            data_root=given.data,
            max_tasks=1,
            every="task",
            probe=False,
        )
        for method in given.methods
    ]
    configs[0].resolve_device()  # raises without a GPU
    context, waiting = get_context("spawn"), []
    for config in configs:
        begin = context.Event()
        arguments = (config, given.seeds, given.out, begin)
        process = context.Process(target=measure, args=arguments, daemon=True)
        process.start()
        waiting.append((config, process, begin))
    failed = []
    for config, process, begin in waiting:
        begin.set()
        process.join()
        if process.exitcode != 0:
            failed.append(config.name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
