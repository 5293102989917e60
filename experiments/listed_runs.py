"""Do the runs of a list at the same time, where the ``ocar`` command's packages are not installed.

    python experiments/listed_runs.py experiments/listed_runs.jsonl --device cuda
    ocar keep runs

A line of the list has fields of ``RunConfig`` and ``seeds``, such as
``{"benchmark": "split-cifar100", "method": "ocar", "seeds": [0, 1]}``. Runs begin in the order of
the list. The same command resumes. On SIGTERM, as from ``timeout 560``, all runs save and leave.
Runs of Table 1 are left out where only a sample of their data set is found.

The list beside this file has runs that ``results/`` lacks, in this order:

1. rows of Table 1 on Split-CIFAR100, on the published splits: the methods of the paper's claims;
2. one seed of these methods on Split-TinyImageNet;
3. options of the authors' code;
4. two more seeds on Split-TinyImageNet;
5. ``ocar-slow``: Split-TinyImageNet, parts of it, without settings;
6. the other rows of Split-CIFAR100;
7. OCAR with E-KFAC, damped as K-FAC is.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ocar.errors import DataError, OcarError
from ocar_lab.cli import CUDA_DEFAULTS
from ocar_lab.cli.paper_tables import DATA, require_data
from ocar_lab.cli.running import do_runs
from ocar_lab.cli.workers import choose_workers
from ocar_lab.experiment import Job, RunConfig


def read_list(path: Path, **common: Any) -> list[RunConfig]:
    """The configurations of a list, one a seed."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [RunConfig(**common, seed=seed, **row) for row in rows for seed in row.pop("seeds")]


def main() -> int:
    """Parse, run; 1 if a run failed or was stopped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("list", type=Path)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    given = parser.parse_args()
    for name, value in CUDA_DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        jobs = len(read_list(given.list))
        common = {"device": given.device, "data_root": given.data}
        workers, common = choose_workers(common, workers=given.workers, jobs=jobs)
        configs = read_list(given.list, **common)
    except OcarError as error:
        parser.exit(2, f"{error}\n")
    refused = _without_data(configs, given.data)
    todo = [Job(config=config, out=given.out) for config in configs if config not in refused]
    again = shlex.join(["python", *sys.argv])
    failed = do_runs(todo, workers=workers, again=again, debug=True) if todo else 0
    return failed or int(bool(refused))


def _without_data(configs: Sequence[RunConfig], root: Path | None) -> list[RunConfig]:
    """The runs of whole benchmarks of Table 1 whose data set is not whole."""
    refused: list[RunConfig] = []
    whole = [c for c in configs if c.max_tasks is None and c.max_batches is None]
    for benchmark in DATA:
        own = [config for config in whole if config.benchmark == benchmark]
        try:
            if own:
                require_data(benchmark, root)
        except DataError as error:
            sys.stderr.write(f"{len(own)} runs of {benchmark} are left out. {error}\n")
            refused += own
    return refused


if __name__ == "__main__":
    sys.exit(main())
