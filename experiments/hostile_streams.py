"""What is left of a learner after a stretch of its stream that was built to break it?

    python experiments/hostile_streams.py run
    python experiments/hostile_streams.py run --streams scaled zeros --methods ocar --seeds 3
    python experiments/hostile_streams.py table

``run`` takes split-digits, puts a bad stretch into the middle of its third task, goes on with the
sane stream, and compares the test accuracy at the end with that of a run that never saw the
stretch, paired by seed. Images are floating-point numbers in [0, 1] here, so that they can be
scaled. The results are kept in ``results/reliability/hostile-streams.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ocar.guard import Guard, GuardWarning
from ocar.learner import Learner
from ocar.make import make_learner
from ocar.methods.registry import preset_settings
from ocar.models import make_model
from ocar.streams.benchmarks import make_stream
from ocar_lab.runs import describe_process, mean_interval

BENCHMARK = "split-digits"
RESULTS = Path(__file__).parents[1] / "results" / "reliability" / "hostile-streams.json"
STRETCH = 100
"""Bad batches, except where a stream says otherwise."""

Batch = tuple[Tensor, Tensor]
Source = Callable[[], Batch]
"""Draws ten samples of the current task."""


def shuffled(draw: Source, batches: int, generator: torch.Generator) -> Iterator[Batch]:
    """Labels of the classes so far, at random."""
    for _ in range(batches):
        x, y = draw()
        yield x, torch.randint(0, int(y.max()) + 1, y.shape, generator=generator)


def zeros(draw: Source, batches: int, generator: torch.Generator) -> Iterator[Batch]:
    """Images that are all zero."""
    for _ in range(batches):
        x, y = draw()
        yield torch.zeros_like(x), y


def one_class(draw: Source, batches: int, generator: torch.Generator) -> Iterator[Batch]:
    """One class only, a hundred times as long as the other stretches."""
    for _ in range(100 * batches):
        x, y = draw()
        while not bool((y == y[0]).sum() >= 2):
            x, y = draw()
        rows = torch.nonzero(y == y[0]).flatten()
        rows = rows[torch.randint(0, len(rows), (10,), generator=generator)]
        yield x[rows], y[rows]


def scaled(draw: Source, batches: int, generator: torch.Generator) -> Iterator[Batch]:
    """Inputs a million times too large."""
    for _ in range(batches):
        x, y = draw()
        yield x * 1e6, y


def duplicates(draw: Source, batches: int, generator: torch.Generator) -> Iterator[Batch]:
    """Ten times the same sample, in every batch."""
    x, y = draw()
    for _ in range(batches):
        yield x[:1].repeat(10, 1, 1, 1), y[:1].repeat(10)


def new_classes(draw: Source, batches: int, generator: torch.Generator) -> Iterator[Batch]:
    """A new class of noise in each batch, up to 2,000 of them."""
    for index in range(20 * batches):
        x, _ = draw()
        middle = torch.rand(x.shape[1:], generator=generator)
        noise = torch.randn(x.shape, generator=generator) / 10
        yield (middle + noise).clamp(0, 1), torch.full((10,), 10 + index)


STREAMS = {f.__name__: f for f in (zeros, scaled, duplicates, one_class, shuffled, new_classes)}


def small_convolutional(seed: int) -> nn.Module:
    """A network with BatchNorm for images of 8 × 8."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 16),
        )


def perceptron(seed: int) -> nn.Module:
    """The benchmark's own model."""
    return make_model("mlp", image_shape=(1, 8, 8), classes=16, seed=seed)


MODELS = {"mlp": perceptron, "batchnorm": small_convolutional}


def sane_batches(seed: int) -> list[tuple[Tensor, Tensor, int]]:
    """The stream as it should be: samples, labels and task of each complete batch."""
    stream = make_stream(BENCHMARK, seed=seed)
    return [(b.x.float() / 255, b.y, b.task) for b in stream if b.complete]


def with_stretch(
    batches: list[tuple[Tensor, Tensor, int]], name: str | None, seed: int, length: int = STRETCH
) -> Iterator[Batch]:
    """The stream with a bad stretch in the middle of its third task."""
    places = [i for i, (*_, task) in enumerate(batches) if task == 2]
    place = places[len(places) // 2]
    generator = torch.Generator().manual_seed(seed)
    xs = torch.cat([batches[i][0] for i in places])
    ys = torch.cat([batches[i][1] for i in places])

    def draw() -> Batch:
        rows = torch.randint(0, len(xs), (10,), generator=generator)
        return xs[rows], ys[rows]

    for index, (x, y, _) in enumerate(batches):
        if index == place and name is not None:
            yield from STREAMS[name](draw, length, generator)
        yield x, y


def accuracy(learner: Learner, seed: int) -> float:
    """Accuracy on the test data of all tasks."""
    stream = make_stream(BENCHMARK, seed=seed)
    right = total = 0
    for task in range(stream.tasks):
        x, y = stream.test(task)
        chosen = learner.predict(x.float() / 255).argmax(1)
        labels = torch.tensor(learner.classes)[chosen]
        right, total = right + int((labels == y).sum()), total + len(y)
    return right / total


def one_run(
    name: str | None, method: str, model: str, seed: int, guard: Guard | None, length: int = STRETCH
) -> dict[str, Any]:
    """Learn a stream to its end; returns what came of it."""
    settings = preset_settings(BENCHMARK, method) | {"normalize": None}
    learner = make_learner(method, MODELS[model](seed), guard=guard, seed=seed, **settings)
    start, batches, error = time.perf_counter(), sane_batches(seed), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuardWarning)
        try:
            for x, y in with_stretch(batches, name, seed, length):
                learner.learn(x, y)
        except ArithmeticError as raised:
            error = str(raised)
    finite = all(bool(p.isfinite().all()) for p in learner.model.state_dict().values())
    return {
        "stream": name,
        "method": method,
        "model": model,
        "guard": guard is not None,
        "seed": seed,
        "batches": learner.batches,
        "accuracy": accuracy(learner, seed) if finite else None,
        "finite": finite,
        "error": error,
        "guarded": asdict(learner.guarded),
        "seconds": round(time.perf_counter() - start, 1),
    }


def run(args: argparse.Namespace) -> None:
    """Run what is asked for and keep it beside what is there."""
    kept = json.loads(args.out.read_text()) if args.out.exists() else {"runs": []}
    key = ("stream", "method", "model", "guard", "seed")
    done = {tuple(r[k] for k in key): r for r in kept["runs"]}
    guards = {True: Guard(), False: None}
    wanted = product(
        [None, *args.streams], args.methods, args.models, args.guards, range(args.seeds)
    )
    for name, method, model, guarded, seed in wanted:
        if name == "new_classes" and seed > 0:
            continue  # minutes, and its loss is only to be known
        result = one_run(name, method, model, seed, guards[guarded])
        done[tuple(result[k] for k in key)] = result
        print(json.dumps(result), flush=True)
        process = describe_process(torch.device("cpu"))
        document = {**process, "command": "python experiments/hostile_streams.py run"}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({**document, "runs": list(done.values())}, indent=1) + "\n")


def table(args: argparse.Namespace) -> None:
    """Print the differences to the runs that never saw the stretch."""
    runs = json.loads(args.out.read_text())["runs"]
    sane = {_who(r): r for r in runs if r["stream"] is None}
    print("| stream | method | model | guard | seeds | finite | skipped | shortened | Acc | Δ |")
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for r in runs:
        groups.setdefault((r["stream"], r["method"], r["model"], r["guard"]), []).append(r)
    for (name, method, model, guard), same in groups.items():
        if name is None:
            continue
        pairs = [(r["accuracy"], sane[_who(r)]["accuracy"]) for r in same if r["finite"]]
        seen = [r["guarded"] for r in same]
        skipped = sum(g["not_finite"] + g["out_of_scale"] for g in seen) / len(seen)
        shortened = sum(g["shortened"] for g in seen) / len(seen)
        cells = [name, method, model, "on" if guard else "off", len(same), len(pairs)]
        cells += [f"{skipped:.0f}", f"{shortened:.0f}"]
        if pairs:
            mean = 100 * sum(a for a, _ in pairs) / len(pairs)
            cells += [f"{mean:.1f}", _difference([100 * (a - b) for a, b in pairs])]
        print("| " + " | ".join(map(str, cells)) + " |")


def _who(r: dict[str, Any]) -> tuple[Any, ...]:
    return r["method"], r["model"], r["guard"], r["seed"]


def _difference(values: list[float]) -> str:
    mean, interval = statistics.fmean(values), mean_interval(values)
    if interval is None:
        return f"{mean:+.1f}"
    return f"{mean:+.1f} ({interval.low:+.1f} to {interval.high:+.1f})"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--streams", nargs="+", choices=list(STREAMS), default=list(STREAMS))
    parser.add_argument("--methods", nargs="+", default=["ocar", "er"])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--guards", nargs="+", type=lambda s: s == "on", default=[True, False], metavar="on|off"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    (run if args.command == "run" else table)(args)


if __name__ == "__main__":
    main()
