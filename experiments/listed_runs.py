"""Do the runs of a list at the same time, where the ``ocar`` command's packages are not installed.

    python experiments/listed_runs.py experiments/listed_runs.jsonl --device cuda --workers 5
    ocar keep runs

A line of the list has fields of ``RunConfig`` and ``seeds``, such as
``{"benchmark": "split-cifar100", "method": "ocar", "seeds": [0, 1]}``. Runs begin in the order of
the list. The same command resumes, and ``--limit-seconds`` stops it: all runs save and leave. The
list beside this file has runs that ``results/`` lacks. First come ``ocar-slow`` on
Split-TinyImageNet, parts of it, and without settings. Then come rows of the paper's table, and
options of the authors' code.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.many import Ended, Job, run_many


def read_list(path: Path, **common: Any) -> list[RunConfig]:
    """The configurations of a list, one a seed."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [RunConfig(**common, seed=seed, **row) for row in rows for seed in row.pop("seeds")]


def main() -> int:
    """Parse, run; 1 if a run failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("list", type=Path)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit-seconds", type=float, default=math.inf)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    given = parser.parse_args()
    configs = read_list(given.list, device=given.device, data_root=given.data)
    jobs = [Job(config=config, out=given.out) for config in configs]
    end, said, failed, left = time.monotonic() + given.limit_seconds, 0.0, 0, len(jobs)
    for message in run_many(jobs, workers=given.workers, stop=lambda: time.monotonic() > end):
        config = configs[message.job]
        name = f"{config.benchmark} {config.name} seed {config.seed}"
        if isinstance(message, Ended):
            left -= 1
            failed += message.state == "failed"
            state = f"{message.state}: {message.error}" if message.error else message.state
            print(f"{name}: {state}; {left} runs left", flush=True)
        elif time.monotonic() > said + 15:
            said = time.monotonic()
            print(f"{name}: {message.done}/{message.batches}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
