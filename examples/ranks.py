"""OCAR on handwritten digits, learned by several processes together.

    torchrun --nproc-per-node 2 --max-restarts 3 examples/ranks.py [--out FOLDER]

Each process takes its share of every batch, and all have the same weights: those that one process
would have. Started again, by torchrun after a fault or by hand, they go on from the last
checkpoint. Without torchrun the same program is one process.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import ocar

EVERY = 20
"""Batches between two checkpoints."""


def make_learner(file: Path, ranks: ocar.Ranks) -> ocar.Learner:
    """The learner of the last checkpoint, or a new one."""
    model = ocar.make_model("mlp", image_shape=(1, 8, 8), seed=0).to(ranks.device)
    if file.exists():
        return ocar.load(file, model, ranks=ranks)
    return ocar.OCAR(model, memory=200, ranks=ranks)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/ranks"), help="for checkpoints")
    parser.add_argument("--limit", type=int, default=10_000, help="batches to learn at most")
    given = parser.parse_args()
    ranks = ocar.Ranks(timeout=120)
    stream = ocar.make_stream("split-digits", seed=0)
    learner = make_learner(given.out / "checkpoint", ranks)
    stream.load_state_dict({"position": learner.batches})
    for batch in stream:
        if learner.batches == given.limit:
            break
        learner.learn(ranks.share(batch.x), ranks.share(batch.y))
        if learner.batches % EVERY == 0:
            learner.save(given.out / "checkpoint")
    learner.save(given.out / "checkpoint")
    tests = [stream.test(task) for task in range(stream.tasks)]
    x, y = torch.cat([x for x, _ in tests]), torch.cat([y for _, y in tests])
    labels = torch.tensor(learner.classes)[learner.predict(x).argmax(1).cpu()]
    if ranks.rank == 0:
        right = (labels == y).double().mean().item()
        print(f"{ranks.size} rank(s), {learner.batches} batches, accuracy {right:.1%}")


if __name__ == "__main__":
    main()
