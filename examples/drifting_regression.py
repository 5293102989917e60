"""A regression whose target drifts: OCAR and ER, predicted before it is learned.

    python examples/drifting_regression.py [--batches 300] [--seed 0]

A sensor is read ten times a batch. What it measures is a smooth function of four inputs that
changes slowly, and the place where it stands drifts and jumps twice. A learner predicts each batch,
gets the answers, and learns them. Two numbers say how well that goes: the error on each batch
before it is learned, and, at the end, the error on a recording of the first tenth of the stream.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import ocar

INPUTS = 4


def readings(batches: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs ``(10, 4)`` and targets ``(10, 1)``, batch after batch.

    The place where the sensor stands moves along the first input, so that the stream shows one
    region after another; what it measures in a region stays nearly the same.
    """
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(INPUTS, 3, generator=generator)
    for batch in range(batches):
        time = batch / batches
        x = 0.5 * torch.randn(10, INPUTS, generator=generator)
        x[:, 0] += 4 * time - 2 + (0.8 if 0.4 < time < 0.7 else 0.0)  # drifts, and jumps twice
        wave = torch.sin(x @ mixing).sum(1, keepdim=True)
        drift = 0.3 * time * x[:, 1:2]
        yield x, wave + drift + 0.05 * torch.randn(10, 1, generator=generator)


def make_network(seed: int) -> nn.Module:
    """A small network with weights of its own seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
        )


def make_learner(method: str, seed: int) -> ocar.Learner:
    """A learner; ER has a good learning rate of five tried on other seeds, OCAR chooses its own."""
    common: dict[str, Any] = {
        "memory": 200,
        "memory_kind": "reservoir",
        "likelihood": "gaussian",
        "seed": seed,
    }
    if method == "er":
        return ocar.make_learner("er", make_network(seed), lr=0.1, **common)
    return ocar.make_learner("ocar", make_network(seed), **common)


def error(learner: ocar.Learner, x: Tensor, y: Tensor) -> float:
    """Mean squared error."""
    return float((learner.predict(x) - y).square().mean())


def run(method: str, batches: int, seed: int) -> tuple[float, float]:
    """One pass over the stream.

    Returns:
        The mean error before learning, and that on the first tenth at the end.
    """
    learner = make_learner(method, seed)
    recorded: list[tuple[Tensor, Tensor]] = []
    before = []
    for batch, (x, y) in enumerate(readings(batches, seed)):
        before.append(error(learner, x, y))
        learner.learn(x, y)
        if batch < batches // 10:
            recorded.append((x, y))
    x, y = (torch.cat(part) for part in zip(*recorded, strict=True))
    return statistics.fmean(before), error(learner, x, y)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=300, help="at least 10")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("mean squared error     before learning   first tenth, at the end")
    for method in ("er", "ocar"):
        before, after = run(method, given.batches, given.seed)
        print(f"{method.upper():22} {before:15.3f} {after:25.3f}")


if __name__ == "__main__":
    main()
