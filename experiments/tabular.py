"""OCAR without settings on tables, with memories that forget and not, beside ER and river's models.

    python experiments/tabular.py phishing image-segments bananas trump-approval
    python experiments/tabular.py sine agrawal hyperplane
    OCAR_DATA=FOLDER python experiments/tabular.py elec2 etth1

Every sample is predicted before it is learned. OCAR and ER learn in batches of ten, with an MLP of
two hidden layers of 64 units and a memory of 2,000, or 500 for a memory that forgets; river's
models learn each sample at once, which is an advantage where the answer depends on the last few.
ER has the best of five learning rates, chosen by the same figure that is printed, on the first
seed, which is more than a user has. Classification is measured by accuracy, regression by the mean
squared error over the variance of the targets. In sine, agrawal and hyperplane a seed also makes
the stream. The sizes of the memories were chosen on other seeds. The results are added to
``results/tabular/``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from river import datasets as river_datasets
from river import forest, linear_model, preprocessing, tree
from river import naive_bayes as river_bayes
from river.datasets import synth
from torch import Tensor, nn

import ocar
from ocar_lab.runs.provenance import describe_process

datasets: Any = river_datasets  # river has no types for some of these
naive_bayes: Any = river_bayes

RESULTS = Path("results/tabular")
BATCH = 10
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
CONCEPT = 2500
"""Samples between two abrupt changes of a synthetic stream, which has four concepts."""

PARTS = 40
"""Points of a curve: the score on each of so many equal parts of the stream."""


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
    if isinstance(targets[0], float):
        return Table(x, torch.tensor(targets, dtype=torch.float32)[:, None])
    names = {name: label for label, name in enumerate(dict.fromkeys(targets))}
    return Table(x, torch.tensor([names[target] for target in targets]))


def one_after_another(concepts: list[Any]) -> Table:
    """The streams of four generators of river, each of which replaces the one before."""
    return of_river(chain.from_iterable(islice(concept, CONCEPT) for concept in concepts))


def sine(seed: int) -> Table:
    """Two numbers and a curve between the classes, which are exchanged, then the curve changes."""
    numbers = range(4)
    return one_after_another(
        [synth.Sine(classification_function=i, seed=10 * seed + i) for i in numbers]
    )


def agrawal(seed: int) -> Table:
    """Loans, granted by four rules."""
    return one_after_another(
        [
            synth.Agrawal(classification_function=rule, seed=10 * seed + i)
            for i, rule in enumerate((0, 3, 6, 8))
        ]
    )


def hyperplane(seed: int) -> Table:
    """Ten numbers and a plane between the classes, which turns all the time; 5 % are noise."""
    plane = synth.Hyperplane(seed=seed, n_features=10, n_drift_features=5, mag_change=0.01)
    return of_river(islice(plane, 4 * CONCEPT))


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


TABLES: dict[str, Callable[[int], Table]] = {
    "phishing": lambda seed: of_river(datasets.Phishing()),
    "image-segments": lambda seed: of_river(datasets.ImageSegments()),
    "bananas": lambda seed: of_river(datasets.Bananas()),
    "trump-approval": lambda seed: of_river(datasets.TrumpApproval()),
    "sine": sine,
    "agrawal": agrawal,
    "hyperplane": hyperplane,
    "elec2": lambda seed: elec2(),
    "etth1": lambda seed: etth1(),
}
"""From a seed to a table."""

FORGETTING = {"window": "a window of 500", "exponential": "an exponential memory of 500"}

Answers = Callable[[Table, int], Tensor]
"""From a table and a seed to the answers, like the targets."""

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


def ours(method: str, table: Table, seed: int, **settings: Any) -> Tensor:
    """The answers of a learner of this package."""
    torch.manual_seed(seed)
    outputs = 1 if table.regression else 2
    model = nn.Sequential(
        *(nn.Linear(table.x.shape[1], 64), nn.ReLU()),
        *(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)),
    )
    if table.regression:
        settings = {"likelihood": "gaussian", "memory_kind": "reservoir"} | settings
    learner = ocar.make_learner(method, model, seed=seed, **settings)

    def answers() -> Iterator[Tensor]:
        for x, y in zip(table.x.split(BATCH), table.y.split(BATCH), strict=True):
            if not learner.batches:
                yield torch.zeros_like(y) if table.regression else -torch.ones_like(y)
            else:
                said = learner.predict(x)
                yield said if table.regression else torch.tensor(learner.classes)[said.argmax(1)]
            learner.learn(x, y)

    return torch.cat(list(answers()))


def theirs(make: Callable[[int], Any], table: Table, seed: int) -> Tensor:
    """The answers of a model of river."""
    model = make(seed)
    said: list[float] = []
    for row, target in zip(table.x.tolist(), table.y.flatten().tolist(), strict=True):
        x = dict(enumerate(row))
        answer = model.predict_one(x)
        said.append(-1 if answer is None else answer)
        model.learn_one(x, target)
    return torch.tensor(said, dtype=table.y.dtype).view_as(table.y)


def no_change(table: Table, late: int) -> Tensor:
    """The last target that is known, if those of ``late`` samples become known together."""
    place = torch.arange(len(table.y)) // late * late
    return table.y[(place - 1).clamp(min=0)]


def score(said: Tensor, y: Tensor, variance: Tensor) -> float:
    """Accuracy, or the mean squared error over a variance."""
    if y.is_floating_point():
        return float((said - y).square().mean() / variance)
    return float((said == y).double().mean())


class Comparison:
    """All that are compared on one table.

    Args:
        name: The table.
        seeds: Seeds of the models, and of the stream if it is synthetic.
        only: How the names of rows to measure again begin; empty for all.
        about: What made the results.
    """

    def __init__(self, name: str, seeds: list[int], only: str, about: dict[str, Any]) -> None:
        self.name, self.seeds = name, seeds
        self.tables = {seed: TABLES[name](seed) for seed in seeds}
        self.first = self.tables[seeds[0]]
        measure = "squared error / variance" if self.first.regression else "accuracy"
        self.about = {"table": name, "samples": len(self.first.y), "measure": measure, **about}
        self.only, self.again = only, about
        self.rows: dict[str, Any] = {}
        if only:
            stored = json.loads((RESULTS / f"{name}.json").read_text())
            self.rows, self.about = stored.pop("rows"), stored

    def run(self) -> None:
        """Compare, and save after each row."""
        self.add("OCAR, no settings", lambda table, seed: ours("ocar", table, seed))
        for kind, words in FORGETTING.items():
            self.add(f"OCAR, {words}", self.learner("ocar", memory=500, memory_kind=kind))
        self.add("ocar-slow, no settings", self.learner("ocar-slow"))
        window = {"memory": 500, "memory_kind": "window"}
        self.add("ocar-slow, a window of 500", self.learner("ocar-slow", **window))
        self.add_best("ER, lr={lr:g}")
        self.add_best("ER, lr={lr:g}, a window of 500", **window)
        for who, make in (REGRESSORS if self.first.regression else CLASSIFIERS).items():
            self.add(who, partial(theirs, make))
        self.add("no change", lambda table, seed: no_change(table, 1))
        self.add("no change, ten samples late", lambda table, seed: no_change(table, BATCH))

    def learner(self, method: str, **settings: Any) -> Answers:
        """A learner of this package."""
        return lambda table, seed: ours(method, table, seed, **settings)

    def add_best(self, who: str, **settings: Any) -> None:
        """Add ER with the learning rate that is the best on the first seed."""
        if not who.startswith(self.only):
            return
        best = min if self.first.regression else max
        seed = self.seeds[0]
        found = {
            lr: self.score(ours("er", self.first, seed, lr=lr, **settings), seed) for lr in RATES
        }
        rate = best(found, key=lambda lr: found[lr])
        self.add(who.format(lr=rate), self.learner("er", lr=rate, **settings))

    def score(self, said: Tensor, seed: int) -> float:
        """The score on the stream of a seed; the first batch does not count."""
        y = self.tables[seed].y
        return score(said[BATCH:], y[BATCH:], y.double().var())

    def curve(self, said: Tensor, seed: int) -> Tensor:
        """The score on each part of the stream of a seed, ``(PARTS,)``."""
        y = self.tables[seed].y
        parts = zip(said.tensor_split(PARTS), y.tensor_split(PARTS), strict=True)
        return torch.tensor([score(*part, y.double().var()) for part in parts])

    def add(self, who: str, answers: Answers) -> None:
        """Measure on each seed, print, save."""
        if not who.startswith(self.only):
            return
        said, seconds = {}, []
        for seed, table in self.tables.items():
            started = time.process_time()
            said[seed] = answers(table, seed)
            seconds.append(time.process_time() - started)
        milliseconds = min(seconds) / len(self.first.y) * BATCH * 1000
        scores = [self.score(answer, seed) for seed, answer in said.items()]
        curve = torch.stack([self.curve(answer, seed) for seed, answer in said.items()]).mean(0)
        self.rows[who] = {
            "scores": scores,
            "ms_a_batch": round(milliseconds, 3),
            "curve": [round(value, 4) for value in curve.tolist()],
            **({"made": self.again} if self.only else {}),
        }
        mean, spread = statistics.mean(scores), statistics.pstdev(scores)
        print(
            f"{self.name:15} {who:36} {mean:.4f} ± {spread:.4f}  {milliseconds:.1f} ms", flush=True
        )
        RESULTS.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**self.about, "seeds": self.seeds, "rows": self.rows}, indent=1)
        (RESULTS / f"{self.name}.json").write_text(_on_one_line(text) + "\n")


def _on_one_line(text: str) -> str:
    """JSON with each list of numbers on one line."""
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)


def main() -> None:
    """Parse, call."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tables", nargs="+", choices=TABLES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", default="", help="Begin of the rows to measure again.")
    given = parser.parse_args()
    about = describe_process(torch.device("cpu"))  # before the files of results/ change
    for name in given.tables:
        Comparison(name, given.seeds, given.only, about).run()


if __name__ == "__main__":
    main()
