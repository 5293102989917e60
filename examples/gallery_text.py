"""Intents of an assistant's users, domain after domain, and what is out of scope.

    pip install ocar wordllama
    OCAR_DATA=FOLDER python examples/gallery_text.py [--benchmark clinc150-tokens] [--limit 100]

FOLDER holds CLINC150 (``ocar data`` says where to get it). The sentences of ``clinc150`` are means
of wordllama's static embeddings, learned by an MLP; those of ``clinc150-tokens`` are ids of hashed
words, learned by a transformer from scratch. Every sentence is seen once.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

import ocar
from ocar.evaluate import detect_unknown
from ocar.streams import get_benchmark


def accuracy(learner: ocar.Learner, x: Tensor, y: Tensor) -> float:
    """The share of sentences whose intent is predicted."""
    said = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
    return float((said == y).double().mean())


def main() -> None:
    """Learn the stream; after each domain, test on all intents so far and on the unknown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--benchmark", default="clinc150")
    parser.add_argument("--limit", type=int, help="batches to learn; by default all 1,500")
    parser.add_argument("--seed", type=int, default=0, help="of the order and of the weights")
    given = parser.parse_args()

    stream: Any = ocar.make_stream(given.benchmark, seed=given.seed)
    unknown = stream.arrays.x_unknown
    model = ocar.make_model(**get_benchmark(given.benchmark).model_settings(), seed=given.seed)
    learner = ocar.OCAR(model, memory=1500, standardize=False, seed=given.seed)

    for batch in stream:
        learner.learn(batch.x, batch.y)
        ends = batch.index + 1 == given.limit
        if ends or (batch.last and batch.task % 3 == 2):  # three tasks are a domain
            tests = [stream.test(task) for task in range(batch.task + 1)]
            x, y = (torch.cat(parts) for parts in zip(*tests, strict=True))
            found = detect_unknown(learner, x, unknown)["entropy"]
            print(
                f"{len(learner.classes):3} intents, accuracy {accuracy(learner, x, y):.3f}; "
                f"out of scope: AUROC {found.auroc:.3f}, FPR at 95 % TPR {found.fpr95:.3f}",
                flush=True,
            )
        if ends:
            break


if __name__ == "__main__":
    main()
