"""OCAR on handwritten digits, learned by workers of Ray Train together.

    pip install "ray[train]"
    python examples/ranks_ray.py [--workers 2] [--out FOLDER]

Ray Train starts the workers and connects them, as torchrun does for examples/ranks.py. After a
fault it starts them again, and they go on from the last checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import ocar

EVERY = 20
"""Batches between two checkpoints."""


def learn(settings: dict[str, Any]) -> None:
    """What each worker does; all must see the folder ``settings["out"]``."""
    ranks = ocar.Ranks(timeout=120)  # Ray Train has connected the workers
    file = Path(settings["out"]) / "checkpoint"
    model = ocar.make_model("mlp", image_shape=(1, 8, 8), seed=0).to(ranks.device)
    if file.exists():
        learner = ocar.load(file, model, ranks=ranks)
    else:
        learner = ocar.OCAR(model, memory=200, ranks=ranks)
    stream = ocar.make_stream("split-digits", seed=0)
    stream.load_state_dict({"position": learner.batches})
    for batch in stream:
        if learner.batches == settings["limit"]:
            break
        learner.learn(ranks.share(batch.x), ranks.share(batch.y))
        if learner.batches % EVERY == 0:
            learner.save(file)
    learner.save(file)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=2, help="one a GPU, if there are GPUs")
    parser.add_argument("--out", type=Path, default=Path("runs/ranks_ray"), help="for checkpoints")
    parser.add_argument("--limit", type=int, default=10_000, help="batches to learn at most")
    given = parser.parse_args()
    out = given.out.resolve()
    TorchTrainer(
        learn,
        train_loop_config={"out": str(out), "limit": given.limit},
        scaling_config=ScalingConfig(num_workers=given.workers, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(storage_path=str(out), failure_config=FailureConfig(max_failures=3)),
    ).fit()


if __name__ == "__main__":
    main()
