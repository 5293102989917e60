"""Which root of the Fisher is the cheapest that costs no accuracy? On Split-CIFAR100.

    python experiments/fisher_roots.py run --tasks 10 --seeds 0 1 2
    python experiments/fisher_roots.py run --roots exact "sketched(4)" --seeds 0 1 2 3 4
    python experiments/fisher_roots.py compare --tasks 10

``run`` trains OCAR with each root and seed, with the published settings, side by side on a GPU, and
keeps the results in ``results/fisher-roots``. ``compare`` pairs the runs by seed and gives the mean
difference in AAA (validation data) to the exact root with its 95 % interval (Student's t).

Train-mode BatchNorm couples the samples of a batch, so roots with signs shared by the batch and
roots drawn for each sample estimate different matrices, see ``ocar.curvature.fisher``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from ocar.experiment import RunConfig
from ocar.experiment.many import Ended, Job, run_many
from ocar.metrics import mean_interval
from ocar.runs import read_run
from ocar.runs.results import keep, read_result, result_files

BENCHMARK = "split-cifar100"
EXACT = "exact"
ROOTS = (
    EXACT,
    "sketched(1)",
    "sketched(2)",
    "sketched(4)",
    "sketched(8)",
    "sketched(4, independent)",
    "sketched(8, independent)",
    "top(1)",
    "top(4)",
    "sampled(1)",
    "sampled(4)",
)


def run(roots: list[str], seeds: list[int], tasks: int | None, workers: int, out: Path) -> int:
    """Train with every root and seed; returns how many runs are not finished."""
    configs = {
        (root, seed): RunConfig(
            benchmark=BENCHMARK,
            method="ocar",
            settings={"fisher": root},
            seed=seed,
            max_tasks=tasks,
            probe=False,
        )
        for root in roots
        for seed in seeds
    }
    jobs = [Job(config=config, out=out) for config in configs.values()]
    names = [f"{root}, seed {seed}" for root, seed in configs]
    left = len(jobs)
    for message in run_many(jobs, workers=workers):
        if isinstance(message, Ended):
            done = message.state in ("finished", "already finished")
            left -= done
            aaa = message.metrics.get("aaa")
            print(f"{names[message.job]}: {message.state} {message.error}{aaa or ''}", flush=True)
    for root in roots:
        runs = [read_run(out / configs[root, seed].folder()) for seed in seeds]
        finished = [r for r in runs if r.summary is not None]
        if finished:
            keep(finished, Path("results/fisher-roots"))
    return left


def compare(tasks: int | None, results: Path) -> None:
    """Print the mean AAA of each root and its paired difference to the exact one."""
    by_root: dict[str, dict[int, tuple[float, float]]] = {}
    for path in result_files(results):
        for kept in read_result(path).runs:
            if kept.config["max_tasks"] == tasks and kept.summary.aaa is not None:
                measured = (100 * kept.summary.aaa, kept.summary.seconds)
                by_root.setdefault(kept.config["transform"]["fisher"], {})[kept.seed] = measured
    reference = by_root.get(EXACT, {})
    print(f"{'root':28s} seeds   AAA    difference to exact (95 %)   train s")
    for root, values in sorted(by_root.items()):
        aaa = statistics.mean(value for value, _ in values.values())
        seconds = statistics.mean(value for _, value in values.values())
        paired = [values[s][0] - reference[s][0] for s in values.keys() & reference.keys()]
        text = ""
        interval = mean_interval(paired)
        if root != EXACT and interval is not None:
            half = (interval.high - interval.low) / 2
            text = f"{statistics.mean(paired):+5.2f} ± {half:.2f} over {len(paired)}"
        print(f"{root:28s} {len(values):5d} {aaa:5.1f}    {text:28s} {seconds:7.1f}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--roots", nargs="+", default=list(ROOTS))
    running.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    running.add_argument("--tasks", type=int, help="only the first so many tasks")
    running.add_argument("--workers", type=int, default=6)
    running.add_argument("--out", type=Path, default=Path("runs"))
    comparing = commands.add_parser("compare")
    comparing.add_argument("--tasks", type=int)
    comparing.add_argument("--results", type=Path, default=Path("results/fisher-roots"))
    given = parser.parse_args()
    if given.command == "compare":
        compare(given.tasks, given.results)
    else:
        left = run(given.roots, given.seeds, given.tasks, given.workers, given.out)
        sys.exit(1 if left else 0)


if __name__ == "__main__":
    main()
