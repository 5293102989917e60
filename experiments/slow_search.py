"""Compare variants of ``ocar-slow`` on validation data, with seeds that are not reported.

    python experiments/slow_search.py rows.jsonl --seeds 100 101 --device cuda
    python experiments/slow_search.py --table

``rows.jsonl`` has the settings of one variant a line, over those of ``ocar-slow``, such as
``{"replay_batch": 40}``; ``method`` names another method. Each variant learns the first tasks of
a benchmark. AAA and WC-Acc are of validation data, and Acc, of test data, decides nothing. The
results are added to ``results/settings/slow-BENCHMARK.json`` after each run: the same command
resumes. ``--table`` prints them: mean over seeds, and the difference from the row that a name
begins with, on the same seeds. ``before`` is ``ocar-slow`` as it was in earlier rows.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.many import Ended, Job, run_many
from ocar_lab.runs.provenance import describe_process

METRICS = ("aaa", "wc_acc", "acc")
BASE = "ocar-slow"


def name_of(row: dict[str, Any]) -> str:
    """A variant in words: the method and what differs from its preset."""
    given = {name: value for name, value in row.items() if name != "method"}
    method = str(row.get("method", BASE))
    return f"{method} {json.dumps(given, sort_keys=True)}" if given else method


def search(rows: list[dict[str, Any]], store: Path, given: argparse.Namespace) -> None:
    """Run every variant with every seed, seed by seed."""
    data = json.loads(store.read_text()) if store.is_file() else {"rows": []}
    known = {row["configuration"]: row for row in data["rows"]}
    wanted = [(row, seed) for seed in given.seeds for row in rows]
    wanted = [(r, s) for r, s in wanted if str(s) not in known.get(name_of(r), {}).get("seeds", {})]
    jobs = [Job(config=_config(row, seed, given), out=given.out) for row, seed in wanted]
    about = describe_process(torch.device(given.device))
    made = {key: about[key] for key in ("command", "device", "versions", "git", "time")}
    end = time.monotonic() + given.limit_seconds
    for message in run_many(jobs, workers=given.workers, stop=lambda: time.monotonic() > end):
        if not isinstance(message, Ended):
            continue
        row, seed = wanted[message.job]
        name = name_of(row)
        print(f"{name}, seed {seed}: {message.state} {message.error}", flush=True)
        if message.state == "finished":
            entry = known.setdefault(name, {"configuration": name, "seeds": {}, "made": made})
            found = {metric: message.metrics[metric] for metric in METRICS}
            entry["seeds"][str(seed)] = {n: round(v or 0.0, 4) for n, v in found.items()}
            data["rows"] = list(known.values())
            store.write_text(json.dumps(data, indent=1) + "\n")


def _config(row: dict[str, Any], seed: int, given: argparse.Namespace) -> RunConfig:
    return RunConfig(
        benchmark=given.benchmark,
        method=str(row.get("method", BASE)),
        settings={name: value for name, value in row.items() if name != "method"},
        seed=seed,
        max_tasks=given.tasks,
        every=given.every,
        probe=False,
        device=given.device,
        data_root=given.data,
    )


def table(store: Path) -> None:
    """Print mean and difference of each variant, the best AAA + WC-Acc first."""
    rows = json.loads(store.read_text())["rows"]
    bases = {row["configuration"]: row["seeds"] for row in rows}
    lines = []
    for row in rows:
        seeds, base = row["seeds"], bases.get(row["configuration"].split()[0].rstrip(","), {})
        means = [100 * statistics.fmean(s[m] for s in seeds.values()) for m in METRICS]
        common = seeds.keys() & base.keys()
        gains = [
            100 * statistics.fmean(seeds[s][m] - base[s][m] for s in common) if common else math.nan
            for m in METRICS
        ]
        cells = [
            f"{mean:5.1f} {gain:+5.1f}".replace("+nan", "    ")
            for mean, gain in zip(means, gains, strict=True)
        ]
        lines.append((gains[0] + gains[1], " | ".join(cells), len(seeds), row["configuration"]))
    print("        AAA |      WC-Acc |         Acc | seeds | variant")
    for _, shown, count, name in sorted(
        lines, reverse=True, key=lambda line: (not math.isnan(line[0]), line[0])
    ):
        print(f"{shown} | {count} | {name}")


def main() -> None:
    """Parse, call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="?", type=Path, help="one variant a line, in JSON")
    parser.add_argument("--benchmark", default="split-cifar100")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101])
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/slow-search"))
    parser.add_argument("--store", type=Path)
    parser.add_argument("--limit-seconds", type=float, default=math.inf)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    store = given.store or Path(f"results/settings/slow-{given.benchmark}.json")
    if given.rows is not None:
        rows = [json.loads(line) for line in given.rows.read_text().splitlines() if line.strip()]
        search(rows, store, given)
    if given.table or given.rows is None:
        table(store)


if __name__ == "__main__":
    main()
