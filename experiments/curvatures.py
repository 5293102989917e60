"""E-KFAC and FOOF beside K-FAC, as the curvature of OCAR on Split-CIFAR100.

    python experiments/curvatures.py search
    python experiments/curvatures.py run
    python experiments/curvatures.py keep

``search`` tries learning rates and dampings on four tasks with a seed of its own: a grid, then
the neighbours of the best. It compares by the accuracy on validation data averaged over time
(AAA). K-FAC has the paper's settings. E-KFAC adds τ alone to its curvature; damped as K-FAC is,
it needs no search. ``run`` trains on the whole stream with the best settings and seeds 0 to 2.
``keep`` writes one line for each run to ``results/curvatures/``; it needs polars,
the others need not, so that they run on a machine without it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.many import Ended, Job, run_many
from ocar_lab.runs import find_runs

BENCHMARK = "split-cifar100"
RESULTS = Path("results/curvatures")
SEARCH_SEED, SEARCH_TASKS = 100, 4
SEEDS = (0, 1, 2)


class Choice(NamedTuple):
    """A kind of curvature with its settings."""

    curvature: str
    lr: float
    tau: float


KFAC = Choice("kfac", 0.000703388, 0.000703388)  # the paper's
GRID = (
    *(Choice("ekfac", lr, tau) for lr in (2e-4, 7e-4, 2e-3, 6e-3) for tau in (lr, 10 * lr)),
    *(Choice("foof", lr, tau) for lr in (0.01, 0.03, 0.1, 0.3) for tau in (0.1, 1.0, 10.0)),
)
STEPS = ((2, 1), (0.5, 1), (1, 3), (1, 1 / 3), (2, 3), (0.5, 1 / 3))
"""From a choice to its neighbours: factors of lr and tau."""


def search(out: Path, workers: int) -> dict[str, Choice]:
    """The best settings of each kind on validation data."""
    found = _validate([KFAC, *GRID], out, workers)
    best = _best(found)
    near = [
        Choice(kind, best[kind].lr * f, best[kind].tau * g)
        for kind in ("ekfac", "foof")
        for f, g in STEPS
    ]
    found |= _validate([choice for choice in near if choice not in found], out, workers)
    best = _best(found)
    for choice, aaa in sorted(found.items(), key=lambda item: item[1]):
        print(f"{choice.curvature:6} lr {choice.lr:<10.4g} tau {choice.tau:<10.4g} AAA {aaa:.4f}")
    (out / "best.json").write_text(json.dumps(best))
    return best


def _best(found: dict[Choice, float]) -> dict[str, Choice]:
    return {c.curvature: c for c, _ in sorted(found.items(), key=lambda item: item[1])}


def _validate(choices: Iterable[Choice], out: Path, workers: int) -> dict[Choice, float]:
    choices = list(choices)
    configs = [
        _config(c, seed=SEARCH_SEED, max_tasks=SEARCH_TASKS, every=10, probe=False) for c in choices
    ]
    ended = _train(configs, out, workers)
    return {choice: ended[i].metrics.get("aaa") or 0.0 for i, choice in enumerate(choices)}


def run(out: Path, workers: int) -> None:
    """Train with the best settings on the whole stream."""
    best = {k: Choice(*v) for k, v in json.loads((out / "best.json").read_text()).items()}
    configs = [
        # The paper's settings are the preset: the run is the same as without these flags.
        _config(best[kind], seed=seed) if kind != "kfac" else _config(None, seed=seed)
        for seed in SEEDS
        for kind in ("kfac", "ekfac", "foof")
    ]
    _train(configs, out, workers)


def _config(choice: Choice | None, **options: Any) -> RunConfig:
    settings = {} if choice is None else choice._asdict()
    if settings.get("curvature") == "ekfac":
        settings["damping_kind"] = "exact"
    return RunConfig(benchmark=BENCHMARK, method="ocar", settings=settings, **options)


def _train(configs: list[RunConfig], out: Path, workers: int) -> dict[int, Ended]:
    jobs = [Job(config=config, out=out) for config in configs]
    ended: dict[int, Ended] = {}
    for message in run_many(jobs, workers=workers):
        if isinstance(message, Ended):
            ended[message.job] = message
            print(configs[message.job].settings, message.state, message.error, flush=True)
    return ended


def keep(out: Path) -> None:
    """Write what was measured, and print the means over seeds."""
    lines: list[dict[str, Any]] = []
    scores: dict[Choice, list[dict[str, Any]]] = {}
    for done in find_runs(out):
        if done.summary is None:
            continue
        settings = {**done.config["settings"], **done.config["transform"]}
        tau = settings["lr"] if settings["tau"] is None else settings["tau"]
        choice = Choice(settings["curvature"], settings["lr"], tau)
        names = ("acc", "aaa", "wc_acc", "probe", "seconds")
        measured = {name: getattr(done.summary, name) for name in names}
        about = {"seed": done.seed, "tasks": done.config["max_tasks"], "changed": done.changed}
        sessions = [{n: s[n] for n in ("device", "versions", "time")} for s in done.sessions]
        lines.append({**choice._asdict(), **about, **measured, "sessions": sessions})
        if done.config["max_tasks"] is None:
            scores.setdefault(choice, []).append(measured)
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (RESULTS / f"{BENCHMARK}.jsonl").write_text(text)
    for choice, runs in scores.items():
        columns = {name: [100 * one[name] for one in runs] for name in ("acc", "aaa", "wc_acc")}
        shown = (
            f"{n} {statistics.mean(v):.1f} ± {statistics.stdev(v):.1f}" for n, v in columns.items()
        )
        print(choice, len(runs), "seeds", *shown)


def main() -> None:
    """Parse, call."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["search", "run", "keep"])
    parser.add_argument("--out", type=Path, default=Path("runs/curvatures"))
    parser.add_argument("--workers", type=int, default=5)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "search":
        search(given.out, given.workers)
    elif given.what == "run":
        run(given.out, given.workers)
    else:
        keep(given.out)


if __name__ == "__main__":
    main()
