"""How fast the curvature is: two ratios, each measured side by side in one run.

    python benchmarks/kfac.py [--json FILE] [--repeats N]

1. factors and inverses of Slim-ResNet18 at 100 classes, batch 20, against
   nngeometry's ``FIM(PMatKFAC)`` and ``inverse`` on the same model and batch;
2. a stream batch of OCAR (three passes) against one of ER, at 100 classes.

The two sides of a ratio take turns, so that a busy machine slows both; the
ratio is of the medians, with the smallest and largest ratio of a turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ocar

CLASSES, BATCH, DAMPING = 100, 20, 1e-3


def factors_and_inverses() -> tuple[Callable[[], object], Callable[[], object]]:
    """Ours and nngeometry's, from the forward pass to the inverses."""
    from nngeometry.layercollection import LayerCollection
    from nngeometry.metrics import FIM
    from nngeometry.object.pspace import PMatKFAC
    from torch.utils.data import DataLoader, TensorDataset

    model = ocar.make_model("slim-resnet18", image_shape=(3, 32, 32), classes=CLASSES)
    x = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    kfac = ocar.KFAC(model, damping=DAMPING, ema=0.1)

    def ours() -> None:
        with kfac.capture():
            logits = model(x)
        kfac.update(logits)
        kfac.refresh()

    loader = DataLoader(TensorDataset(x), batch_size=BATCH)
    layers = LayerCollection()
    for name, module in model.named_modules():
        if name in kfac.blocks:  # the same layers: not BatchNorm
            layers.add_layer_from_model(model, module)

    def theirs() -> object:
        fisher = FIM(model, loader, PMatKFAC, variant="classif_logits", layer_collection=layers)
        return fisher.inverse(DAMPING)

    return ours, theirs


def stream_batches() -> tuple[Callable[[], object], Callable[[], object]]:
    """A stream batch of OCAR and one of ER, with 100 classes and a filled memory."""
    generator = torch.Generator().manual_seed(0)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randint(0, 256, (10, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return x, torch.randint(0, CLASSES, (10,), generator=generator)

    def learner(method: str) -> ocar.Learner:
        model = ocar.make_model("slim-resnet18", image_shape=(3, 32, 32), classes=CLASSES)
        made = ocar.make_learner(method, model, preset="split-cifar100", classes=range(CLASSES))
        for _ in range(5):
            made.remember(*batch())
        return made

    curved, plain = learner("ocar"), learner("er")
    return lambda: curved.learn(*batch()), lambda: plain.learn(*batch())


def take_turns(
    first: Callable[[], object], second: Callable[[], object], repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of each call, the two taking turns after one warm-up each."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 1):
        for kept, call in zip(times, (first, second), strict=True):
            start = time.perf_counter()
            call()
            if turn:
                kept.append(time.perf_counter() - start)
    return times


def measure(name: str, times: tuple[list[float], list[float]], *, over: str) -> dict[str, Any]:
    """The ratio second / first, or first / second for ``over="second"``, with its spread."""
    top, bottom = times if over == "second" else times[::-1]
    ratios = [a / b for a, b in zip(top, bottom, strict=True)]
    return {
        "what": name,
        "ratio": round(statistics.median(top) / statistics.median(bottom), 2),
        "smallest": round(min(ratios), 2),
        "largest": round(max(ratios), 2),
        "seconds": [round(statistics.median(t), 4) for t in times],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    rows = [
        measure(
            "nngeometry's factors and inverses / ours",
            take_turns(*factors_and_inverses(), given.repeats),
            over="first",
        ),
        measure(
            "a stream batch of OCAR / of ER",
            take_turns(*stream_batches(), given.repeats),
            over="second",
        ),
    ]
    for row in rows:
        print(f"{row['what']:42} {row['ratio']:6.2f}  ({row['smallest']} to {row['largest']})")
    if given.json:
        machine = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        command = f"python benchmarks/kfac.py --repeats {given.repeats}"
        report = {"command": command, "machine": machine, "ratios": rows}
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
