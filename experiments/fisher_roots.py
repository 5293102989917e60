"""Which root of the Fisher is the cheapest that costs no accuracy?

    python experiments/fisher_roots.py run --roots exact "sketched(4)" --seeds 0 1 2 3 4
    python experiments/fisher_roots.py run --tasks 10 --seeds 0 1 2
    python experiments/fisher_roots.py compare --tasks 10
    python experiments/fisher_roots.py run --benchmark split-mnist --workers 2

``run`` trains OCAR with each root and seed, with the benchmark's settings, side by side, and keeps
what it found in ``results/fisher-roots/``, a file a benchmark: for each run the accuracy on
validation data averaged over time (AAA), up to the end of each task. ``compare`` pairs the runs by
seed and gives the mean difference in AAA to the exact root with its 95 % interval (Student's t).
The first tasks of a longer run count for fewer tasks too: it learns the same until then.

Train-mode BatchNorm couples the samples of a batch, so roots with signs shared by the batch and
roots drawn for each sample estimate different matrices, see ``ocar.curvature.fisher``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from ocar.streams import get_benchmark
from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.many import Ended, Job, run_many
from ocar_lab.runs import Run, mean_interval, read_run

RESULTS = Path("results/fisher-roots")
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


def run(
    benchmark: str, roots: list[str], seeds: list[int], tasks: int | None, workers: int, out: Path
) -> int:
    """Train with every root and seed; returns how many runs are not finished."""
    configs = {
        (root, seed): RunConfig(
            benchmark=benchmark,
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
            left -= message.finished
            aaa = message.metrics.get("aaa")
            print(f"{names[message.job]}: {message.state} {message.error}{aaa or ''}", flush=True)
    found = {}
    for (root, _), config in configs.items():
        trained = read_run(out / config.folder())
        if trained.summary is not None:
            line = {"root": root, **describe(trained)}
            found[key(line)] = line
    keep(found, RESULTS / f"{benchmark}.jsonl")
    return left


def describe(trained: Run) -> dict[str, Any]:
    """What is kept of a finished run."""
    columns, summary = trained.columns, trained.summary
    assert summary is not None
    assert summary.acc is not None
    accuracy = columns.accuracy()
    tasks = int(columns.task[-1]) + 1
    return {
        "seed": trained.seed,
        "tasks": tasks,
        "aaa": [round(float(accuracy[columns.task <= task].mean()), 6) for task in range(tasks)],
        "test": round(summary.acc, 6),
        "train_s": round(summary.seconds, 1),
        "batches": len(columns),
        "sessions": [
            {name: session[name] for name in ("device", "versions", "time", "beside")}
            for session in trained.sessions
        ],
    }


def key(line: dict[str, Any]) -> tuple[str, int, int]:
    """What a line of the results is known by."""
    return line["root"], line["seed"], line["tasks"]


def read(path: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """All that was found so far."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {key(line): line for line in map(json.loads, lines)}


def keep(found: dict[tuple[str, int, int], dict[str, Any]], path: Path) -> None:
    """Add lines to what was found before, in place of those of the same runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = sorted((read(path) | found).items())
    path.write_text("".join(json.dumps(line) + "\n" for _, line in lines), encoding="utf-8")


def compare(tasks: int, path: Path) -> list[str]:
    """The mean AAA of each root over the first tasks, and its paired difference to the exact one.

    Only seeds that every root was run with count.

    Returns:
        The lines of a table, the best root first.
    """
    by_root: dict[str, dict[int, float]] = {}
    for line in read(path).values():
        if line["tasks"] >= tasks:
            by_root.setdefault(line["root"], {})[line["seed"]] = 100 * line["aaa"][tasks - 1]
    if EXACT not in by_root:
        raise SystemExit(
            f"{path} has no run of {EXACT!r} over {tasks} tasks to compare with: run it."
        )
    seeds = sorted(set.intersection(*map(set, by_root.values())))
    means = {
        root: statistics.fmean(found[seed] for seed in seeds) for root, found in by_root.items()
    }
    table = [f"| root | AAA, {len(seeds)} seeds | difference to exact, 95 % |", "|---|---|---|"]
    for root, mean in sorted(means.items(), key=lambda item: -item[1]):
        paired = [by_root[root][seed] - by_root[EXACT][seed] for seed in seeds]
        interval = mean_interval(paired)
        text = ""
        if root != EXACT and interval is not None:
            text = f"{statistics.fmean(paired):+.2f} ± {(interval.high - interval.low) / 2:.2f}"
        table.append(f"| `{root}` | {mean:.1f} | {text} |")
    return table


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running, comparing = commands.add_parser("run"), commands.add_parser("compare")
    for command in (running, comparing):
        command.add_argument("--benchmark", default="split-cifar100")
        command.add_argument("--tasks", type=int, help="only the first so many tasks")
    running.add_argument("--roots", nargs="+", default=list(ROOTS))
    running.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    running.add_argument("--workers", type=int, default=6)
    running.add_argument("--out", type=Path, default=Path("runs"))
    given = parser.parse_args()
    if given.command == "compare":
        tasks = given.tasks or get_benchmark(given.benchmark).tasks
        print("\n".join(compare(tasks, RESULTS / f"{given.benchmark}.jsonl")))
    else:
        which = given.benchmark, given.roots, given.seeds, given.tasks
        left = run(*which, given.workers, given.out)
        sys.exit(1 if left else 0)


if __name__ == "__main__":
    main()
