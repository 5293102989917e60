"""Seconds of training on the first task of Split-CIFAR100, each method in a process of its own.

    python experiments/first_task_times.py --device cuda --out runs/times
    ocar keep runs/times
    ocar paper times

What begins in a process pays for its start: libraries are loaded, kernels compiled, memory is
asked for. So a process learns the first task twice, and the second run counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from ocar_lab.experiment import RunConfig, run
from ocar_lab.paper.times import BENCHMARK
from ocar_lab.published import FIRST_TASK_SECONDS

Device = Literal["cpu", "cuda"]


def measure(method: str, device: Device, data_root: Path | None, out: Path) -> None:
    """Learn the first task, and once more into the folder of the results."""
    config = RunConfig(
        benchmark=BENCHMARK,
        method=method,
        device=device,
        data_root=data_root,
        max_tasks=1,
        every="task",
        probe=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        run(config, out=Path(folder))
    run(config, out=out)


def main() -> None:
    """Parse, start a process for each method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("methods", nargs="*", default=[*FIRST_TASK_SECONDS])
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/times"))
    given = parser.parse_args()
    if len(given.methods) == 1:
        measure(given.methods[0], given.device, given.data, given.out)
        return
    for method in given.methods:
        words = [method, "--device", given.device, "--out", str(given.out)]
        words += ["--data", str(given.data)] if given.data else []
        subprocess.run([sys.executable, __file__, *words], check=True)
        print(method, flush=True)


if __name__ == "__main__":
    main()
