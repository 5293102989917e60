"""Forecast seven sensors of a transformer a day ahead, and learn as the days pass.

    OCAR_DATA=FOLDER python examples/gallery_series.py [--limit 2000]

Needs ``ETT/ETTh1.csv`` in the folder. Every hour has a forecast of the next 24 hours from the last
60. Once a day the model learns the forecasts whose 24 hours have passed by then, and no others.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import ocar
from ocar.metrics import PrequentialError, naive_scale
from ocar.streams import ForecastStream

WINDOW, HORIZON, DAY = 60, 24, 24


class Forecaster(nn.Module):
    """A small network forecasts how each column departs from its last value."""

    def __init__(self, columns: int, horizon: int = HORIZON, hidden: int = 128) -> None:
        super().__init__()
        self.columns = columns
        layers = (nn.Linear(columns * WINDOW, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.net = nn.Sequential(*layers, nn.ReLU(), nn.Linear(hidden, columns * horizon))

    def forward(self, x: Tensor) -> Tensor:
        """From windows ``(n, columns · window)`` to forecasts ``(n, columns · horizon)``."""
        window = x.unflatten(1, (self.columns, WINDOW))
        last = window[:, :, -1:]
        departure = self.net((window - last).flatten(1))
        return (departure.unflatten(1, (self.columns, -1)) + last).flatten(1)


def main() -> None:
    """Learn the stream and print the error, in units of the seasonal naive forecast's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", type=int, help="hours to use; all by default")
    path = Path(os.environ["OCAR_DATA"]) / "ETT/ETTh1.csv"
    table = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, 8), dtype=np.float32)
    series = torch.from_numpy(table[: parser.parse_args().limit])
    scale = torch.tensor(naive_scale(series, season=DAY).repeat(HORIZON))
    learner = ocar.OCAR(Forecaster(7), likelihood="student-t", memory_kind="reservoir")
    error = PrequentialError()
    for batch in ForecastStream(series, window=WINDOW, horizon=HORIZON, every=DAY):
        if batch.known is not None:
            learner.learn(*batch.known)
            error.update(learner.predict(batch.x) / scale, batch.y / scale)
    print(f"MASE {error.compute():.3f} of forecasts {HORIZON} hours ahead")


if __name__ == "__main__":
    main()
