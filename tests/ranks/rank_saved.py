"""One rank that goes on from a checkpoint and saves another.

Arguments: the file, the first batch, the batch after the last, where the memory is.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rank_cases import learn, make_model, make_stream

import ocar


def main() -> None:
    file, first, last, memory = sys.argv[1:]
    torch.set_num_threads(1)
    ranks, model = ocar.Ranks(timeout=100, memory=memory), make_model("batchnorm")
    if Path(file).exists():
        learner = ocar.load(file, model, ranks=ranks)
        assert learner.batches == int(first)
    else:
        learner = ocar.OCAR(model, ranks=ranks, memory=30, passes=2, seed=5)
    learn(learner, make_stream("batchnorm", 12)[int(first) : int(last)])
    learner.save(file)


if __name__ == "__main__":
    main()
