"""Whether two revisions learn the same: weights after a few batches, in double precision.

    python experiments/same_weights.py store before.pt        # at one revision
    python experiments/same_weights.py store after.pt         # at the other
    python experiments/same_weights.py compare before.pt after.pt --save weights.json

``store`` trains every method on 100 batches of split-digits with two seeds, and some methods and
options on a few batches of Split-CIFAR100 with Slim-ResNet18. With ``--long`` it trains OCAR on 300
batches of Split-CIFAR100, in single precision. It uses only what version 0.1 had too:
``PYTHONPATH=<its src>`` runs it there. ``compare`` prints the largest difference of a weight.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import ocar

METHODS = (
    *("er", "er-ace", "er-lwf", "mir", "rar", "der", "der++", "scr", "ocm", "onpro", "gdumb"),
    *("agem", "lpr", "ewc", "ngd", "ocar", "ocar-ace", "ocar-der++"),
)
ON_IMAGES = ("er", "er-ace", "lpr", "ocar", "ocar-ace", "ocar-der++", "der++", "scr", "mir")
OPTIONS: dict[str, dict[str, Any]] = {
    "exact Fisher": {"fisher": "exact"},
    "every pass": {"fisher_passes": "every"},
    "exact damping": {"damping_kind": "exact"},
    "weights in both": {"weighting": "both"},
    "reduce": {"sharing": "reduce"},
    "norm layers": {"norm_layers": True},
    "own forward pass": {"fisher_forward": "own"},
    "averaged prediction": {"prediction": "average"},
}


def train(
    method: str, benchmark: str, batches: int, *, seed: int = 0, dtype: torch.dtype, **options: Any
) -> dict[str, torch.Tensor]:
    """The weights and buffers of the model at the end."""
    on_digits = benchmark == "split-digits"
    shape, classes = ((1, 8, 8), 16) if on_digits else ((3, 32, 32), 128)
    name = "mlp" if on_digits else "slim-resnet18"
    model = ocar.make_model(name, image_shape=shape, classes=classes, seed=seed).to(dtype)
    learner = ocar.make_learner(method, model, preset=benchmark, seed=seed, **options)
    for batch in ocar.make_stream(benchmark, seed=seed):
        if batch.complete:
            learner.learn(batch.x, batch.y)
        else:
            learner.remember(batch.x, batch.y)
        if batch.last and learner.wants_boundaries:
            learner.boundary()
        if learner.batches == batches:
            break
    return {name: value.clone() for name, value in model.state_dict().items()}


def store(path: Path, *, long: bool) -> None:
    """Train all, and write their weights."""
    double, found = torch.float64, {}

    def add(name: str, *arguments: Any, **options: Any) -> None:
        found[name] = train(*arguments, **options)
        print(name, flush=True)

    if long:
        add("ocar, 300 batches", "ocar", "split-cifar100", 300, dtype=torch.float32)
    else:
        for method in METHODS:
            for seed in (0, 1):
                add(f"{method}, seed {seed}", method, "split-digits", 100, seed=seed, dtype=double)
        for method in ON_IMAGES:
            add(f"{method}, Slim-ResNet18", method, "split-cifar100", 8, dtype=double)
        for name, given in OPTIONS.items():
            add(f"ocar, Slim-ResNet18, {name}", "ocar", "split-cifar100", 4, dtype=double, **given)
    torch.save(found, path)


def compare(before: Path, after: Path, save: Path | None) -> None:
    """Print the largest difference of a weight, and write all of them."""
    one, two = torch.load(before), torch.load(after)
    differences = {
        name: max(
            float((one[name][key].double() - value.double()).abs().max())
            for key, value in weights.items()
        )
        for name, weights in two.items()
    }
    for name, difference in differences.items():
        print(f"{name:40} {difference:.1e}")
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        save.write_text(json.dumps(differences, indent=1) + "\n")


def main() -> None:
    """Parse, call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="what", required=True)
    storing = commands.add_parser("store")
    storing.add_argument("file", type=Path)
    storing.add_argument("--long", action="store_true")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--save", type=Path)
    given = parser.parse_args()
    if given.what == "store":
        store(given.file, long=given.long)
    else:
        compare(given.before, given.after, given.save)


if __name__ == "__main__":
    main()
