"""Avalanche's replay strategy with and without our plugin, on a stream of ours.

    OCAR_DATA=DIR python experiments/avalanche_comparison.py run split-mnist --seeds 0 1 2
    python experiments/avalanche_comparison.py table split-mnist

The strategy is ``Naive`` with ``ReplayPlugin`` and a class-balanced buffer, the model our MLP with
Avalanche's growing head, each stream batch, or each ten, an experience of its own, gone through
three times. Data, order, settings and evaluation are those of our own runs with the same seed
(``results/<benchmark>/comparison.json``), so that the two can be compared seed by seed. What was
measured is kept in ``results/avalanche/<benchmark>.json``; a run that is there is not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ocar
from ocar.evaluate import Finished
from ocar.learner import Report
from ocar.methods.ocar import OCARSettings
from ocar.methods.registry import make_settings, preset_settings
from ocar.methods.settings import LearnerSettings
from ocar.streams import Benchmark, get_benchmark

RESULTS = Path(__file__).resolve().parents[1] / "results"
NAMES = {"er": "Naive + ReplayPlugin", "ocar": "Naive + ReplayPlugin + OCARPlugin"}
METRICS = ("acc", "aaa", "wc_acc")
EVERY = {"split-mnist": 10, "split-digits": 1}
"""Batches from one evaluation to the next; our own runs were evaluated after every one."""

BATCHES = {"split-mnist": 10, "split-digits": 1}
"""Batches in an experience: to begin one costs Avalanche more the more there have been."""


def define_torchvision_operators() -> None:
    """Let torchvision be imported beside a torch that it was not built for, as Avalanche does.

    Nothing here calls the two operators.
    """
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", signature)


class AvalancheLearner:
    """A strategy as our evaluation wants a learner: some batches are the next experience.

    Args:
        strategy: The strategy.
        experiences: What it is trained on, each some batches of the stream.
    """

    def __init__(self, strategy: Any, experiences: Iterator[Any]) -> None:
        self.strategy = strategy
        self.experiences = experiences
        self._next = next(experiences)
        self._labels: list[int] = []
        self.normalize = ocar.Normalize()

    @property
    def classes(self) -> tuple[int, ...]:
        """The labels that have come; the stream numbers them by appearance."""
        return tuple(torch.nonzero(self.strategy.model.head.active_units).flatten().tolist())

    def learn(self, x: Tensor, y: Tensor) -> Report:
        """Train on the next experience once all of its batches have come."""
        self._labels += y.tolist()
        targets = list(self._next.dataset.targets)
        if len(self._labels) == len(targets):
            if self._labels != targets:
                raise RuntimeError("The experiences are not the batches of the stream.")
            with warnings.catch_warnings(record=True):  # it says each time what it will remove
                self.strategy.train(self._next, eval_streams=[])
            self._next, self._labels = next(self.experiences, None), []
        return Report(loss=torch.zeros(()), classes=len(self.classes), values={})

    def remember(self, x: Tensor, y: Tensor) -> None:
        """Take a short last batch into the memory alone, unless it is part of an experience."""
        if self._labels or len(y) < len(self._next.dataset.targets):
            self.learn(x, y)
            return
        self.strategy.plugins[0].storage_policy.post_adapt(self.strategy, self._next)
        self._next = next(self.experiences, None)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Logits of the classes that have come."""
        model = self.strategy.model
        model.eval()
        outputs = model(self.normalize(x))
        model.train()
        return outputs[:, list(self.classes)]


def experiences(stream: Any, size: int) -> Iterator[Any]:
    """The samples of a stream, in their order, as Avalanche's online experiences of some size."""
    from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline
    from avalanche.benchmarks.scenarios.online import split_online_stream
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute

    def dataset(task: int) -> Any:
        x, y = stream.training(task)
        labels = DataAttribute(y.tolist(), "targets", use_in_getitem=False)
        tasks = DataAttribute([0] * len(y), "targets_task_labels", use_in_getitem=True)
        data = torch.utils.data.TensorDataset(ocar.Normalize()(x), y)
        return AvalancheDataset([data], data_attributes=[labels, tasks])

    scenario = benchmark_from_datasets(train=[dataset(task) for task in range(stream.tasks)])
    online = split_online_stream(scenario.train_stream, experience_size=size, shuffle=False)
    return iter(with_classes_timeline(online))


def make_strategy(
    benchmark: Benchmark, settings: LearnerSettings, transform: OCARSettings | None, seed: int
) -> Any:
    """Avalanche's replay, with the plugin where there is a transform."""
    from avalanche.models import IncrementalClassifier
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ClassBalancedBuffer
    from avalanche.training.supervised import Naive

    from ocar.integrations.avalanche import OCARPlugin

    torch.manual_seed(seed)
    model: Any = ocar.make_model(benchmark.model, image_shape=benchmark.image_shape, seed=seed)
    model.head = IncrementalClassifier(model.head.in_features, initial_out_features=2)
    replay = ReplayPlugin(
        mem_size=settings.memory,
        batch_size=benchmark.batch_size,
        batch_size_mem=settings.replay_batch,
        storage_policy=ClassBalancedBuffer(max_size=settings.memory),
    )
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=settings.given_lr),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=benchmark.batch_size,
        train_epochs=settings.passes,
        plugins=[replay] if transform is None else [replay, OCARPlugin(transform, seed=seed)],
        evaluator=EvaluationPlugin(),
    )


def make(name: str, method: str, seed: int) -> tuple[Any, AvalancheLearner]:
    """A stream and Avalanche's replay for it, with the preset of a method."""
    benchmark = get_benchmark(name)
    stream = ocar.make_stream(name, seed=seed)
    settings, transform = make_settings(method, **preset_settings(name, method))
    assert transform is None or isinstance(transform, OCARSettings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that it imports
        strategy = make_strategy(benchmark, settings, transform, seed)
        size = BATCHES[name] * benchmark.batch_size
        return stream, AvalancheLearner(strategy, experiences(stream, size))


def whole_run(name: str, method: str, seed: int) -> dict[str, Any]:
    """The metrics of one whole run."""
    torch.set_num_threads(1)
    define_torchvision_operators()
    stream, learner = make(name, method, seed)
    last = list(ocar.evaluate(learner, stream, every=EVERY[name]))[-1]
    assert isinstance(last, Finished)
    # Accuracy is compared here; for time see `python -m benchmarks --only mlp`.
    found = asdict(last.summary).items()
    metrics = {key: v for key, v in found if v is not None and "seconds" not in key}
    return {"method": method, "seed": seed, **metrics}


def run(name: str, *, seeds: list[int], workers: int) -> None:
    """Make the runs that are not kept yet, keep each as it ends, and print the table."""
    path = RESULTS / "avalanche" / f"{name}.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    done = {(kept["method"], kept["seed"]) for kept in runs}
    jobs = [job for job in itertools.product(NAMES, seeds) if job not in done]
    jobs.sort(key=lambda job: job[1])
    with ProcessPoolExecutor(workers) as pool:
        for ended in as_completed(pool.submit(whole_run, name, *job) for job in jobs):
            runs.append(ended.result())
            print(
                "{method} seed {seed}: Acc {acc:.4f}, AAA {aaa:.4f}".format(**runs[-1]), flush=True
            )
            keep(path, name, sorted(runs, key=lambda kept: (kept["method"], kept["seed"])))
    print(table(name))


def keep(path: Path, name: str, runs: list[dict[str, Any]]) -> None:
    """Write what was measured so far, and with what."""
    seeds = " ".join(str(seed) for seed in sorted({kept["seed"] for kept in runs}))
    report = {
        "command": f"python experiments/avalanche_comparison.py run {name} --seeds {seeds}",
        "settings": {method: preset(name, method) for method in NAMES},
        "evaluated every": EVERY[name],
        "batches an experience": BATCHES[name],
        "machine": {"machine": platform.machine(), "device": "cpu", "threads a run": 1},
        "versions": {package: version(package) for package in ("avalanche-lib", "ocar", "torch")},
        "runs": runs,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def preset(name: str, method: str) -> dict[str, Any]:
    """What a preset says, as plain values."""
    values = preset_settings(name, method)
    return {key: v for key, v in values.items() if isinstance(v, (int, float, str))}


def table(name: str) -> str:
    """Mean ± standard deviation in per cent, ours with the same seeds below, as Markdown."""
    runs = json.loads((RESULTS / "avalanche" / f"{name}.json").read_text())["runs"]
    seeds = {result["seed"] for result in runs}
    ours = json.loads((RESULTS / name / "comparison.json").read_text())["runs"]
    lines = ["| | Acc | AAA | WC-Acc |", "|---|---|---|---|"]
    for title, found in ((NAMES, runs), ({"er": "our ER", "ocar": "our OCAR"}, ours)):
        for method in NAMES:
            mine = [r for r in found if r["method"] == method and r["seed"] in seeds]
            lines.append(f"| {title[method]} | {' | '.join(cell(mine, m) for m in METRICS)} |")
    return "\n".join(lines)


def cell(runs: list[dict[str, Any]], metric: str) -> str:
    """Mean ± sample standard deviation of a metric, in per cent."""
    values = [100 * result[metric] for result in runs]
    spread = statistics.stdev(values) if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.1f} ± {spread:.1f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("benchmark", choices=["split-mnist", "split-digits"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=1, help="processes")
    given = parser.parse_args()
    if given.action == "run":
        run(given.benchmark, seeds=given.seeds, workers=given.workers)
    else:
        print(table(given.benchmark))


if __name__ == "__main__":
    main()
