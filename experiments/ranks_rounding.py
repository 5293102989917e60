"""What changes if ranks send the factors with 16 bits?

    python experiments/ranks_rounding.py

Two ranks on this machine learn 200 batches of the digits in float32: with full factors, with
``Ranks(factor_dtype="float16")``, and rank 0 also as one process. One process adds in another order
only, so it shows how far rounding to 32 bits leads.

- A step: the change of all weights by one batch. Before every 50th batch the learner with full
  factors is saved; the others learn that batch from the same file. Given is the norm of the
  difference of the changes, by the norm of the change.
- The weights after 200 batches: the norm of their difference, by the norm of their change since the
  start.

The result is ``results/ranks/rounding.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ranks_networks import on_ranks  # type: ignore[import-not-found]
from torch import Tensor, nn

import ocar
from ocar.evaluate.measure import hits
from ocar.learner import Learner
from ocar_lab.runs.provenance import describe_process

RESULT = Path("results/ranks/rounding.json")
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MLP, 2 x 400 units": lambda: nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 400), nn.ReLU()),
        *(nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)),
    ),
    "convolutions, BatchNorm": lambda: nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(576, 10)),
    ),
}
SEEDS = (0, 1, 2)
BATCHES, EVERY = 200, 50

Batches = list[tuple[Tensor, Tensor]]


def digits(seed: int) -> tuple[Batches, Tensor, Tensor]:
    """Batches of split-digits, a little smaller than usual, and all its test samples."""
    stream = ocar.make_stream("split-digits", seed=seed)
    given = [(batch.x, batch.y) for batch in stream]
    x, y = (torch.cat(parts) for parts in zip(*given, strict=True))
    size = len(y) // BATCHES
    batches = list(zip(x.split(size), y.split(size), strict=True))[:BATCHES]
    tests = [stream.test(task) for task in range(stream.tasks)]
    return batches, torch.cat([x for x, _ in tests]), torch.cat([y for _, y in tests])


def make(network: str, seed: int, ranks: ocar.Ranks | None) -> Learner:
    """A new learner."""
    torch.manual_seed(seed)
    return ocar.OCAR(NETWORKS[network](), memory=100, seed=seed, ranks=ranks)


def load(file: Path, network: str, ranks: ocar.Ranks | None) -> Learner:
    """A learner that goes on from a file."""
    return ocar.load(file, NETWORKS[network](), ranks=ranks)


def weights(learner: Learner) -> Tensor:
    """All weights, flat."""
    return torch.cat([p.detach().double().flatten() for p in learner.model.parameters()])


def learn(learner: Learner, x: Tensor, y: Tensor) -> None:
    """Learn a batch, of which each rank takes its share if there are ranks."""
    ranks = learner.ranks
    learner.learn(*((x, y) if ranks is None else (ranks.share(x), ranks.share(y))))


def step(learner: Learner, x: Tensor, y: Tensor) -> Tensor:
    """The change of the weights by one batch."""
    before = weights(learner)
    learn(learner, x, y)
    return weights(learner) - before


def measure(network: str, seed: int, groups: dict[str, ocar.Ranks | None]) -> dict[str, Any]:
    """One network and seed; ``groups`` are the ranks of each way to learn."""
    batches, x, y = digits(seed)
    learners = {name: make(network, seed, ranks) for name, ranks in groups.items()}
    start = weights(learners["full"])
    steps: dict[str, list[float]] = {name: [] for name in groups if name != "full"}
    with tempfile.TemporaryDirectory() as folder:
        for number, batch in enumerate(batches):
            if number % EVERY == 0:
                file = Path(folder) / f"{number}"
                learners["full"].save(file)
                full = learners["full"].ranks
                assert full is not None
                file = Path(full.exchange(f"{file}")[0])  # the first has written it
                others = {name: load(file, network, groups[name]) for name in steps}
                made = {name: step(other, *batch) for name, other in others.items()}
                own = step(learners["full"], *batch)
                for name, change in made.items():
                    steps[name].append(float((change - own).norm() / own.norm()))
            else:
                learn(learners["full"], *batch)
            for name in steps:
                learn(learners[name], *batch)
    last = weights(learners["full"])
    moved = (last - start).norm()
    return {
        "network": network,
        "seed": seed,
        "accuracy": {n: float(hits(own, x, y).double().mean()) for n, own in learners.items()},
        "skipped": {name: learner.guarded.skipped for name, learner in learners.items()},
        "steps": steps,
        "weights": {name: float((weights(learners[name]) - last).norm() / moved) for name in steps},
    }


def measure_all(out: Path) -> None:
    """One rank; the first writes what was measured."""
    torch.set_num_threads(1)
    groups: dict[str, ocar.Ranks | None] = {
        "full": ocar.Ranks(timeout=120),
        "float16": ocar.Ranks(timeout=120, factor_dtype="float16"),
    }
    first = groups["full"] is not None and groups["full"].rank == 0
    if first:
        groups["one process"] = None
    found = [measure(network, seed, groups) for network in NETWORKS for seed in SEEDS]
    if first:
        out.write_text(json.dumps(found))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rank-out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_out is not None:
        measure_all(given.rank_out)
        return
    found = on_ranks(__file__, 2)
    about = describe_process(torch.device("cpu"))
    record = {**about, "batches": BATCHES, "ranks": 2, "measured": found}
    RESULT.write_text(json.dumps(record, indent=1) + "\n")
    for row in found:
        print(row)


if __name__ == "__main__":
    main()
