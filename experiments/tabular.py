"""OCAR without settings on tables, beside ER and the models of river with their defaults.

    python experiments/tabular.py phishing image-segments trump-approval --seeds 0 1 2
    OCAR_DATA=FOLDER python experiments/tabular.py elec2 etth1

Every sample is predicted before it is learned. OCAR and ER learn in batches of ten, with a memory
of 2,000 and an MLP of two hidden layers of 64 units; river's models learn each sample at once,
which is an advantage where the answer depends on the last few. ER has the best of five learning
rates, chosen by the same figure that is printed, which is more than a user has. Classification is
measured by accuracy, regression by the mean squared error over the variance of the targets. The
results are added to ``results/tabular/``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from river import datasets as river_datasets
from river import forest, linear_model, preprocessing, tree
from river import naive_bayes as river_bayes
from torch import Tensor, nn

import ocar
from ocar_lab.runs.provenance import describe_process

datasets: Any = river_datasets  # river has no types for some of these
naive_bayes: Any = river_bayes

RESULTS = Path("results/tabular")
BATCH = 10
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)


class Table(NamedTuple):
    """Samples in the order of the stream."""

    x: Tensor  # (n, features)
    y: Tensor  # (n,) labels, or (n, 1) targets

    @property
    def regression(self) -> bool:
        """Whether the targets are numbers."""
        return self.y.is_floating_point()


def of_river(data: Any) -> Table:
    """A data set of river, whose features are numbers."""
    rows = list(data)
    x = torch.tensor([[float(v) for v in features.values()] for features, _ in rows])
    targets = [target for _, target in rows]
    if isinstance(targets[0], float | int) and not isinstance(targets[0], bool):
        return Table(x, torch.tensor(targets, dtype=torch.float32)[:, None])
    names = {name: label for label, name in enumerate(dict.fromkeys(targets))}
    return Table(x, torch.tensor([names[target] for target in targets]))


def elec2() -> Table:
    """Whether the price of electricity goes up, from six numbers; half hours."""
    rows = _csv("elec2/elec.csv")
    x = torch.tensor([[float(v) for v in row[:-1]] for row in rows])
    return Table(x, torch.tensor([int(row[-1]) for row in rows]))


def etth1() -> Table:
    """The oil temperature an hour later, from the seven numbers of this hour."""
    rows = _csv("ETT/ETTh1.csv")
    x = torch.tensor([[float(v) for v in row[1:]] for row in rows])
    return Table(x[:-1], x[1:, -1:])


def _csv(name: str) -> list[list[str]]:
    with (Path(os.environ["OCAR_DATA"]) / name).open() as file:
        return list(csv.reader(file))[1:]


TABLES: dict[str, Callable[[], Table]] = {
    "phishing": lambda: of_river(datasets.Phishing()),
    "image-segments": lambda: of_river(datasets.ImageSegments()),
    "bananas": lambda: of_river(datasets.Bananas()),
    "trump-approval": lambda: of_river(datasets.TrumpApproval()),
    "elec2": elec2,
    "etth1": etth1,
}

CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "river, adaptive random forest": lambda seed: forest.ARFClassifier(seed=seed),
    "river, adaptive Hoeffding tree": lambda seed: tree.HoeffdingAdaptiveTreeClassifier(seed=seed),
    "river, scaled softmax regression": lambda seed: (
        preprocessing.StandardScaler() | linear_model.SoftmaxRegression()
    ),
    "river, naive Bayes": lambda seed: naive_bayes.GaussianNB(),
}
REGRESSORS: dict[str, Callable[[int], Any]] = {
    "river, adaptive random forest": lambda seed: forest.ARFRegressor(seed=seed),
    "river, adaptive Hoeffding tree": lambda seed: tree.HoeffdingAdaptiveTreeRegressor(seed=seed),
    "river, scaled linear regression": lambda seed: (
        preprocessing.StandardScaler() | linear_model.LinearRegression()
    ),
}


def ours(method: str, table: Table, seed: int, **settings: Any) -> float:
    """The score of a learner of this package."""
    torch.manual_seed(seed)
    outputs = 1 if table.regression else 2
    model = nn.Sequential(
        *(nn.Linear(table.x.shape[1], 64), nn.ReLU()),
        *(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)),
    )
    if table.regression:
        settings |= {"likelihood": "gaussian", "memory_kind": "reservoir"}
    learner = ocar.make_learner(method, model, seed=seed, **settings)

    def answers() -> Iterator[Tensor]:
        for x, y in zip(table.x.split(BATCH), table.y.split(BATCH), strict=True):
            if not learner.batches:
                yield torch.zeros_like(y) if table.regression else -torch.ones_like(y)
            else:
                said = learner.predict(x)
                yield said if table.regression else torch.tensor(learner.classes)[said.argmax(1)]
            learner.learn(x, y)

    return score(table, torch.cat(list(answers())))


def theirs(model: Any, table: Table) -> float:
    """The score of a model of river."""
    said: list[float] = []
    for row, target in zip(table.x.tolist(), table.y.flatten().tolist(), strict=True):
        x = dict(enumerate(row))
        answer = model.predict_one(x)
        said.append(-1 if answer is None else answer)
        model.learn_one(x, target)
    return score(table, torch.tensor(said, dtype=table.y.dtype).view_as(table.y))


def score(table: Table, said: Tensor) -> float:
    """Accuracy, or the mean squared error over the variance; the first batch does not count."""
    said, y = said[BATCH:], table.y[BATCH:]
    if table.regression:
        return float((said - y).square().mean() / y.var())
    return float((said == y).double().mean())


def compare(name: str, seeds: list[int]) -> None:
    """All of them on one table."""
    table = TABLES[name]()
    best = min if table.regression else max
    found: dict[str, list[float]] = {}

    def tell(who: str, scores: list[float], started: float) -> None:
        found[who] = scores
        mean, spread = statistics.mean(scores), statistics.pstdev(scores)
        took = (time.monotonic() - started) / len(seeds)
        print(f"{name:15} {who:34} {mean:.4f} ± {spread:.4f}  {took:.1f} s", flush=True)

    started = time.monotonic()
    tell("OCAR, no settings", [ours("ocar", table, seed) for seed in seeds], started)
    started = time.monotonic()
    rates = {lr: [ours("er", table, seed, lr=lr) for seed in seeds] for lr in RATES}
    rate = best(rates, key=lambda lr: statistics.mean(rates[lr]))
    tell(f"ER, lr={rate:g}, the best of five", rates[rate], started)
    for who, make in (REGRESSORS if table.regression else CLASSIFIERS).items():
        started = time.monotonic()
        tell(who, [theirs(make(seed), table) for seed in seeds], started)
    RESULTS.mkdir(parents=True, exist_ok=True)
    about = {"table": name, "samples": len(table.y), "seeds": seeds, "scores": found}
    about["measure"] = "squared error / variance" if table.regression else "accuracy"
    text = json.dumps({**about, **describe_process(torch.device("cpu"))}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def main() -> None:
    """Parse, call."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tables", nargs="+", choices=TABLES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    for name in given.tables:
        compare(name, given.seeds)


if __name__ == "__main__":
    main()
