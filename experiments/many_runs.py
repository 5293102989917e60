"""How long do ``ocar show`` and ``ocar report`` take for many long runs? With made-up runs.

    python experiments/many_runs.py make build/many-runs
    python experiments/many_runs.py measure build/many-runs --repeats 3

``make`` writes folders of finished runs as a run writes them: by default 40 configurations with 5
seeds each, 20 tasks as in Split-CIFAR100, 5,000 evaluations a run; every second configuration
reports τ, λ and the ratio of gradient norms, as OCAR does. ``measure`` calls each command in a
process of its own and prints its time and the most memory that it held: processor time is that of
all its threads and children, and says more than wall-clock time where others use the machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocar.evaluate import summarize
from ocar.events import Counts, Evaluated, Finished
from ocar_lab.runs.folder import CONFIG, METRICS, STATUS
from ocar_lab.runs.records import evaluation_record, result_record, to_line

BENCHMARK = "split-cifar100"
SIZE = 250
"""Validation samples a task."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "ocar show": ("show",),
    "ocar show --json": ("show", "--json"),
    "ocar report": ("report",),
}


def make(root: Path, *, configurations: int, seeds: int, tasks: int, evaluations: int) -> None:
    """Write the folders of all runs."""
    for place in range(configurations):
        label = ("er", "ocar")[place % 2]
        for seed in range(seeds):
            rng = np.random.default_rng([place, seed])
            events = _events(rng, tasks, evaluations // tasks)
            folder = root / BENCHMARK / label / f"{place:010x}" / f"seed-{seed}"
            folder.mkdir(parents=True)
            _write(folder, events, rng, label=label, place=place, seed=seed)


def _events(rng: np.random.Generator, tasks: int, each: int) -> list[Evaluated]:
    """Evaluations in which a task is learned when it begins and forgotten slowly after that."""
    batches = np.arange(tasks * each)
    since = batches[:, None] - np.arange(tasks) * each
    learned = np.where(since < each, 1 - np.exp(-since / 20), 0.98 * np.exp(-since / 4000))
    noisy = np.clip(0.6 * learned + rng.normal(0, 0.02, learned.shape), 0, 1)
    correct = np.rint(SIZE * noisy).astype(int).tolist()
    seconds = np.cumsum(rng.uniform(0.02, 0.03, len(batches))).tolist()
    return [
        Evaluated(
            correct=tuple(correct[batch][: batch // each + 1]),
            sizes=(SIZE,) * (batch // each + 1),
            index=batch,
            task=batch // each,
            seconds=seconds[batch],
            seen=10 * (batch + 1),
        )
        for batch in range(len(batches))
    ]


def _write(
    folder: Path,
    events: Sequence[Evaluated],
    rng: np.random.Generator,
    *,
    label: str,
    place: int,
    seed: int,
) -> None:
    settings = {"lr": 0.01 * (place + 1)}
    document = {
        "config": {"benchmark": BENCHMARK, "method": label, "settings": settings, "iid": False},
        "seed": seed,
        "label": label,
        "hash": f"{place:010x}",
        "changed": settings,
        "device": {"type": "cpu", "name": "made up"},
        "command": ["ocar", "run", BENCHMARK, label],
    }
    (folder / CONFIG).write_text(json.dumps(document), encoding="utf-8")
    (folder / STATUS).write_text(json.dumps({"state": "finished"}), encoding="utf-8")
    lines = [to_line(evaluation_record(e, _reported(rng, e, label))) for e in events]
    test = Counts(correct=events[-1].correct, sizes=events[-1].sizes)
    summary = summarize(events, test=test, seconds=events[-1].seconds)
    finished = Finished(correct=test.correct, sizes=test.sizes, summary=summary)
    (folder / METRICS).write_bytes(b"".join([*lines, to_line(result_record(finished))]))


def _reported(rng: np.random.Generator, event: Evaluated, label: str) -> dict[str, Any]:
    reported: dict[str, Any] = {"loss": rng.exponential(), "classes": 5 * (event.task + 1)}
    if label == "ocar":
        weight = max(1.0, float(event.task))
        reported |= {"tau": 1e-4 + 1e-7 * event.index, "replay_weight": weight}
        reported |= {"norm_ratio": float(rng.lognormal())}
    return reported


def measure(root: Path, *, repeats: int) -> None:
    """Print what each command takes, the commands taking turns."""
    print(f"{'command':18s} {'user+sys s':>10s} {'wall s':>7s} {'memory MiB':>10s}")
    for _ in range(repeats):
        for title, words in COMMANDS.items():
            used, wall, memory = _run([sys.executable, "-m", "ocar_lab", *words, str(root)])
            print(f"{title:18s} {used:10.2f} {wall:7.2f} {memory:10.0f}", flush=True)


def _run(command: Sequence[str]) -> tuple[float, float, float]:
    """Processor seconds, seconds, and MiB of one process and its children."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}.")
    return used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("root", type=Path)
    making.add_argument("--configurations", type=int, default=40)
    making.add_argument("--seeds", type=int, default=5)
    making.add_argument("--tasks", type=int, default=20)
    making.add_argument("--evaluations", type=int, default=5000)
    measuring = commands.add_parser("measure")
    measuring.add_argument("root", type=Path)
    measuring.add_argument("--repeats", type=int, default=1)
    given = vars(parser.parse_args())
    command = given.pop("command")
    (make if command == "make" else measure)(given.pop("root"), **given)


if __name__ == "__main__":
    main()
