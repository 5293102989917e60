"""A table that drifts, learned row by row, by two memories.

    python examples/gallery_tables.py FILE.csv [--memory 500] [--limit 10000]

The file has a line of names, then numbers; the last column is the label. The rows are in the order
of time. Every ten are predicted before they are learned. It prints the accuracy of OCAR with a
memory of all that was, and with one of the latest rows.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from torch import Tensor, nn

import ocar


def read(path: Path, limit: int | None) -> tuple[Tensor, Tensor]:
    """The numbers ``(n, features)`` and the labels ``(n,)`` of a file."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:][:limit]
    names = sorted({row[-1] for row in rows})
    x = torch.tensor([[float(value) for value in row[:-1]] for row in rows])
    return x, torch.tensor([names.index(row[-1]) for row in rows])


def accuracy(x: Tensor, y: Tensor, memory: ocar.ReservoirMemory | ocar.WindowMemory) -> float:
    """The share of rows that were right before they were learned."""
    torch.manual_seed(0)
    hidden = (nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model = nn.Sequential(*hidden, nn.Linear(64, 2))  # more than two labels get more units
    learner = ocar.OCAR(model, memory=memory)
    right = 0
    for rows, labels in zip(x.split(10), y.split(10), strict=True):
        if learner.classes:
            said = torch.tensor(learner.classes)[learner.predict(rows).argmax(1)]
            right += int((said == labels).sum())
        learner.learn(rows, labels)
    return right / len(y)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--memory", type=int, default=500, help="rows in the memory")
    parser.add_argument("--limit", type=int, help="rows to read")
    given = parser.parse_args()
    x, y = read(given.file, given.limit)
    for memory in (ocar.ReservoirMemory(given.memory), ocar.WindowMemory(given.memory)):
        print(f"{type(memory).__name__:16} {accuracy(x, y, memory):.3f}", flush=True)


if __name__ == "__main__":
    main()
