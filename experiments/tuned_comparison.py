"""ER and OCAR on a small benchmark, both tuned with the same number of trials.

    python experiments/tuned_comparison.py search split-mnist --trials 30 --workers 2
    python experiments/tuned_comparison.py compare split-mnist --seeds 0 1 2 3 4

``search`` follows the paper's protocol: a tree-structured Parzen estimator over
the published ranges, one seed, the accuracy on validation data after four tasks
as the objective. ``compare`` runs the whole stream with what was chosen, on
other data than the search looked at: final accuracy is on the test set.
Both keep what they did under ``results/<benchmark>/``.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import ocar
from ocar.evaluate import Finished
from ocar.evaluate.measure import hits
from ocar.streams.benchmarks import get_benchmark

RESULTS = Path(__file__).resolve().parents[1] / "results"
SEARCH_TASKS = 4
# The ranges of the paper's search, all on a logarithmic scale.
LR, TAU_STEP, EMA = (1e-5, 0.1), (1e-10, 1e-5), (1e-4, 1.0)
SPACES: dict[str, dict[str, tuple[float, float]]] = {
    "er": {"lr": LR},
    "ocar": {"lr": LR, "tau_step": TAU_STEP, "ema": EMA},
}


def make(
    benchmark: str, method: str, seed: int, settings: dict[str, float]
) -> tuple[Any, ocar.Learner]:
    """A stream and a learner for it."""
    torch.set_num_threads(1)
    protocol = get_benchmark(benchmark)
    stream = ocar.make_stream(benchmark, seed=seed)
    model = ocar.make_model(protocol.model, image_shape=protocol.image_shape, seed=seed)
    fixed = {**protocol.learner_settings(), "seed": seed, **settings}
    if method == "ocar":
        fixed["n_new"] = protocol.classes // protocol.tasks
    return stream, ocar.make_learner(method, model, **fixed)


def validation_accuracy(benchmark: str, method: str, settings: dict[str, float]) -> float:
    """Accuracy on the validation data of the first tasks after having learned them; seed 0."""
    stream, learner = make(benchmark, method, 0, settings)
    try:
        for batch in stream:
            if batch.task >= SEARCH_TASKS:
                break
            (learner.learn if batch.complete else learner.remember)(batch.x, batch.y)
    except ocar.OcarError:
        return 0.0
    held_out = [stream.validation(task) for task in range(SEARCH_TASKS)]
    x, y = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    return float(hits(learner, x, y).double().mean())


def whole_run(benchmark: str, method: str, seed: int, settings: dict[str, float]) -> dict[str, Any]:
    """The metrics of one whole run with an evaluation after every batch."""
    stream, learner = make(benchmark, method, seed, settings)
    last = list(ocar.evaluate(learner, stream))[-1]
    assert isinstance(last, Finished)
    return {"method": method, "seed": seed, **asdict(last.summary)}


def search(benchmark: str, *, methods: list[str], trials: int, workers: int) -> None:
    """Tune methods and write every trial down as it ends."""
    path = RESULTS / benchmark / "search.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    report["objective"] = f"validation accuracy after {SEARCH_TASKS} tasks, seed 0"
    sampler = f"TPE (Optuna), seed 0, constant liar over {workers} concurrent trials"
    with ProcessPoolExecutor(workers) as pool:
        for method in methods:
            report[method] = {
                "space": SPACES[method],
                "sampler": sampler,
                "machine": describe_machine(),
            }
            for study in tune(benchmark, method, pool, trials=trials, width=workers):
                ended = [t for t in study.trials if t.value is not None]
                report[method]["chosen"] = study.best_params
                report[method]["accuracy"] = study.best_value
                report[method]["trials"] = [{"accuracy": t.value, **t.params} for t in ended]
                write(benchmark, "search.json", report)
                print(f"{method} {len(ended)}/{trials}: best {study.best_value:.4f}", flush=True)


def tune(
    benchmark: str, method: str, pool: ProcessPoolExecutor, *, trials: int, width: int
) -> Iterator[Any]:
    """The study after each trial that ends; ``width`` trials are under way at a time."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=0, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    running: dict[Future[float], Any] = {}
    for _ in range(trials):
        trial = study.ask()
        settings = {n: trial.suggest_float(n, *r, log=True) for n, r in SPACES[method].items()}
        running[pool.submit(validation_accuracy, benchmark, method, settings)] = trial
        while len(running) >= width or (running and len(study.trials) == trials):
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                study.tell(running.pop(future), future.result())
            yield study


def compare(benchmark: str, *, seeds: list[int], workers: int) -> None:
    """Run both methods with what the search chose, and print the table."""
    found = json.loads((RESULTS / benchmark / "search.json").read_text())
    settings = {method: found[method]["chosen"] for method in SPACES}
    runs = []
    with ProcessPoolExecutor(workers) as pool:
        jobs = [
            pool.submit(whole_run, benchmark, method, seed, settings[method])
            for seed in seeds
            for method in reversed(SPACES)
        ]
        for job in as_completed(jobs):
            run = job.result()
            print("{method} seed {seed}: Acc {acc:.4f}, AAA {aaa:.4f}".format(**run), flush=True)
            runs.append(run)
    runs.sort(key=lambda run: (run["method"], run["seed"]))
    report = {"settings": settings, "machine": describe_machine(), "runs": runs}
    write(benchmark, "comparison.json", report)
    print(table(runs))


def table(runs: list[dict[str, Any]]) -> str:
    """Mean ± sample standard deviation over seeds, in per cent, as Markdown."""
    lines = ["| method | Acc | AAA | WC-Acc |", "|---|---|---|---|"]
    for method in SPACES:
        mine = [run for run in runs if run["method"] == method]
        cells = []
        for metric in ("acc", "aaa", "wc_acc"):
            values = [100 * run[metric] for run in mine]
            spread = statistics.stdev(values) if len(values) > 1 else float("nan")
            cells.append(f"{statistics.mean(values):.1f} ± {spread:.1f}")
        lines.append(f"| {method.upper()} | {' | '.join(cells)} |")
    return "\n".join(lines)


def describe_machine() -> dict[str, str]:
    """What the numbers were made on."""
    return {"machine": platform.machine(), "torch": torch.__version__, "device": "cpu"}


def write(benchmark: str, name: str, report: dict[str, Any]) -> None:
    """Keep a report under ``results/``."""
    folder = RESULTS / benchmark
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=["search", "compare", "table"])
    parser.add_argument("benchmark", choices=["split-mnist", "split-digits"])
    parser.add_argument("--methods", nargs="+", choices=SPACES, default=list(SPACES))
    parser.add_argument("--trials", type=int, default=30, help="trials for each method")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--workers", type=int, default=2, help="processes")
    given = parser.parse_args()
    if given.action == "search":
        search(given.benchmark, methods=given.methods, trials=given.trials, workers=given.workers)
    elif given.action == "compare":
        compare(given.benchmark, seeds=given.seeds, workers=given.workers)
    else:
        kept = json.loads((RESULTS / given.benchmark / "comparison.json").read_text())
        print(table(kept["runs"]))


if __name__ == "__main__":
    main()
