"""Online forecasts of ETTh1: OCAR without settings, rivals with their best rate, and floors.

    OCAR_DATA=FOLDER python experiments/gallery/series.py [--horizon 24] [--rows NAME ...]
    python experiments/gallery/series.py --draw

The learners see seven columns for 60 hours and forecast all seven, an hour or 24 hours ahead, every
hour. They are updated once a day, with the windows whose horizon has ended. The rate of a rival and
the forgetting of least squares are the best of those tried with seed 0, by the figure in the table,
which is more than a user has. Scores are of all forecasts after the first month. Times are of the
CPU, on one core, learning and forecasting together. Results are added to
``results/gallery/series.json``, a row at a time; ``--draw`` makes the picture of it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import ocar
from ocar.guard import GuardWarning
from ocar.learner import Learner
from ocar.methods.er import ERSettings
from ocar.metrics import mase, naive_scale
from ocar.streams import ForecastStream
from ocar_lab.runs.provenance import describe_process

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from gallery_series import DAY, WINDOW, Forecaster  # noqa: E402

RESULTS = ROOT / "results/gallery/series.json"
PICTURE = ROOT / "docs/gallery/series.png"
MONTH = 30 * DAY
SEEDS = (0, 1, 2)
BLOCK = 14 * DAY
"""Hours of one point of a curve."""

Forecast = Callable[[ForecastStream, int], Tensor]
"""From a stream and a seed to forecasts of all its windows, ``(n, 7 · horizon)``."""


class AdamReplay(ERSettings):
    """ER with Adam in place of SGD."""

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """Adam with its own defaults."""
        return torch.optim.Adam(parameters, lr=self.given_lr)


def network(horizon: int, seed: int) -> nn.Module:
    """The network of the example."""
    torch.manual_seed(seed)
    return Forecaster(7, horizon)


def learned(make: Callable[[nn.Module, int], Learner]) -> Forecast:
    """The forecasts of a learner; the last value before its first batch."""

    def run(stream: ForecastStream, seed: int) -> Tensor:
        learner = make(network(stream.horizon, seed), seed)
        said = []
        for batch in stream:
            if batch.known is not None:
                learner.learn(*batch.known)
            said.append(learner.predict(batch.x) if learner.batches else last(stream, batch.x))
        return torch.cat(said)

    return run


def last(stream: ForecastStream, x: Tensor) -> Tensor:
    """Persistence."""
    window = x.unflatten(1, (-1, stream.window))
    return window[:, :, -1:].expand(-1, -1, stream.horizon).flatten(1)


def same_hour(stream: ForecastStream, x: Tensor) -> Tensor:
    """Seasonal persistence: the values of a day before."""
    window = x.unflatten(1, (-1, stream.window))
    return window[:, :, -DAY : stream.window - DAY + stream.horizon].flatten(1)


def least_squares(forgetting: float) -> Forecast:
    """Recursive least squares: a linear autoregression of departures from the last value.

    Sums of products are multiplied with ``forgetting`` each day; the ridge is 1.
    """

    def run(stream: ForecastStream, seed: int) -> Tensor:
        size = 7 * (stream.window - 1) + 1
        identity = torch.eye(size, dtype=torch.float64)
        products, targets = identity, identity.new_zeros(size, 7 * stream.horizon)
        weights, unit = torch.zeros_like(targets), identity.new_ones(7, 1)
        said = []

        def inputs(x: Tensor) -> Tensor:
            window = x.double().unflatten(1, (7, stream.window))
            departures = (window[:, :, :-1] - window[:, :, -1:]) / unit
            return nn.functional.pad(departures.flatten(1), (0, 1), value=1.0)

        for batch in stream:
            if batch.known is not None:
                x, y = batch.known
                if products is identity:  # a unit for the ridge: what is known at first
                    unit = x.double().unflatten(1, (7, stream.window)).std((0, 2))[:, None]
                rows = inputs(x)
                products = forgetting * products + (1 - forgetting) * identity + rows.T @ rows
                targets = forgetting * targets + rows.T @ (y - last(stream, x)).double()
                weights = torch.linalg.solve(products, targets)
            said.append(last(stream, batch.x) + (inputs(batch.x) @ weights).float())
        return torch.cat(said)

    return run


def floor(forecast: Callable[[ForecastStream, Tensor], Tensor]) -> Forecast:
    """A forecast that learns nothing."""
    return lambda stream, seed: torch.cat([forecast(stream, batch.x) for batch in stream])


def ours(likelihood: str) -> Forecast:
    """OCAR with its defaults."""
    given: Any = {"likelihood": likelihood, "memory_kind": "reservoir"}
    return learned(lambda model, seed: ocar.OCAR(model, seed=seed, **given))


def replay(lr: float, **settings: Any) -> Forecast:
    """ER with SGD; ``replay_batch=0`` for online gradient descent."""
    given: Any = {"likelihood": "gaussian", "memory_kind": "reservoir", "lr": lr, **settings}
    return learned(lambda model, seed: ocar.ER(model, seed=seed, **given))


def adam(lr: float) -> Forecast:
    """ER with Adam."""
    given: Any = {"likelihood": "gaussian", "memory_kind": "reservoir", "lr": lr}
    return learned(lambda model, seed: Learner(model, AdamReplay(seed=seed, **given)))


class Row(NamedTuple):
    """A row of the table: what is tried, and whether a seed changes it."""

    tried: dict[str, Forecast]
    seeds: tuple[int, ...] = SEEDS


ROWS: dict[str, Row] = {
    "persistence": Row({"": floor(last)}, (0,)),
    "seasonal persistence": Row({"": floor(same_hour)}, (0,)),
    "OCAR, Student-t": Row({"": ours("student-t")}),
    "OCAR, Gaussian": Row({"": ours("gaussian")}),
    "least squares": Row(
        {f"forgetting {rate:g}": least_squares(rate) for rate in (1.0, 0.998, 0.99)}, (0,)
    ),
    "ER": Row({f"lr={lr:g}": replay(lr) for lr in (3e-4, 1e-3, 3e-3, 6e-3)}),
    "Adam with replay": Row({f"lr={lr:g}": adam(lr) for lr in (1e-4, 3e-4, 1e-3)}),
    "SGD without replay": Row(
        {f"lr={lr:g}": replay(lr, replay_batch=0) for lr in (3e-4, 1e-3, 3e-3)}
    ),
}


def load(limit: int | None = None) -> Tensor:
    """The series, ``(hours, 7)``."""
    path = Path(os.environ["OCAR_DATA"]) / "ETT/ETTh1.csv"
    table = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, 8), dtype=np.float32)
    return torch.from_numpy(table[:limit])


def score(series: Tensor, said: Tensor, truth: Tensor, horizon: int) -> dict[str, Any]:
    """The scores of the forecasts of all windows.

    ``mase`` has the scale of a day before, ``mase_1`` that of an hour before. ``natsr`` is the
    figure of the code of NatSR: columns standardised by their first four months, all errors of the
    months from the sixth to the twentieth, over all changes from an hour to the next.
    """
    later = slice(MONTH, None)
    scale = naive_scale(series[MONTH:], season=DAY)
    known = series[: 4 * MONTH]
    standard = [
        ((part.unflatten(1, (7, horizon)) - known.mean(0)[:, None]) / known.std(0)[:, None])
        for part in (said, truth)
    ]
    first, end = 5 * MONTH - WINDOW, 20 * MONTH - WINDOW - horizon + 1
    theirs, actual = (part[first:end] for part in standard)
    natsr = (theirs - actual).abs().mean() / (actual[1:] - actual[:-1]).abs().mean()
    errors = ((said - truth).abs().unflatten(1, (7, horizon)).mean(2) / torch.tensor(scale)).mean(1)
    return {
        "mase": mase(said[later], truth[later], scale=scale),
        "mase_1": mase(said[later], truth[later], scale=naive_scale(series[MONTH:])),
        "natsr": float(natsr),
        "curve": [round(float(block.mean()), 4) for block in errors.split(BLOCK)],
    }


def run(name: str, series: Tensor, horizon: int) -> dict[str, Any]:
    """A row: all that is tried by the first seed, and the best by the others."""
    row = ROWS[name]
    stream = ForecastStream(series, window=WINDOW, horizon=horizon, every=DAY)
    truth = torch.cat([batch.y for batch in stream])

    def one(forecast: Forecast, seed: int) -> dict[str, Any]:
        started = time.process_time()
        said = forecast(stream, seed)
        spent = (time.process_time() - started) / len(stream)
        return {"seed": seed, "ms": 1000 * spent, **score(series, said, truth, horizon)}

    tried = {what: one(forecast, row.seeds[0]) for what, forecast in row.tried.items()}
    best = min(tried, key=lambda what: _or_inf(tried[what]["mase"]))
    runs = [tried[best], *(one(row.tried[best], seed) for seed in row.seeds[1:])]
    for found in runs[1:]:
        del found["curve"]
    return {
        "choice": best,
        "tried": {what: found["mase"] for what, found in tried.items()},
        "runs": runs,
    }


def _or_inf(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def draw() -> None:
    """The error over time of some rows."""
    import matplotlib.pyplot as plt

    rows = json.loads(RESULTS.read_text())["24"]["rows"]
    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    names = ("OCAR, Student-t", "ER", "least squares", "seasonal persistence")
    for name, color in zip(names, ("#0b5394", "#cc7a00", "#38761d", "#888888"), strict=True):
        curve = rows[name]["runs"][0]["curve"]
        weeks = [2 * (i + 1) for i in range(len(curve))]
        width = 2.0 if name.startswith("OCAR") else 1.2
        axes.plot(weeks, curve, label=name, color=color, linewidth=width)
    axes.set(xlabel="week of the stream", ylabel="error (MASE) of two weeks", ylim=(0.5, 2.0))
    axes.legend(frameon=False, ncols=2, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=110)


def compare(names: list[str], horizon: int, limit: int | None) -> None:
    """Run rows, and store each."""
    series = load(limit)
    about = {"data": "ETTh1", "hours": len(series), "window": WINDOW, "every": DAY, "hidden": 128}
    about |= {"scored_from": MONTH, "season": DAY}
    process = describe_process(torch.device("cpu"))
    for name in names:
        row = {**run(name, series, horizon), **process}
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        rows = stored.get(str(horizon), {}).get("rows", {})
        stored[str(horizon)] = {**about, "rows": {**rows, name: row}}
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
        print(name, row["choice"], [round(found["mase"], 4) for found in row["runs"]], flush=True)


def main() -> None:
    """Parse, call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--horizon", type=int, default=24)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--limit", type=int, help="hours to use; all by default")
    parser.add_argument("--draw", action="store_true", help="only draw the picture")
    given = parser.parse_args()
    if given.draw:
        draw()
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", GuardWarning)
    compare(given.rows, given.horizon, given.limit)


if __name__ == "__main__":
    main()
