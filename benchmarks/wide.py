"""Networks wider than those of the paper: OCAR over ER for timm's ResNet18 and ViT-tiny."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.results import Result, Skipped, Target, compare
from benchmarks.setup import Setup, noise, stream_batch
from benchmarks.timing import take_turns
from ocar.learner import Learner
from ocar.make import make_learner

CLASSES, MEMORY = 100, 200
NETWORKS: dict[str, dict[str, int]] = {
    "resnet18": {},
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 4},
}
"""Names and options of timm's networks."""


def measure_wide(setup: Setup) -> Iterator[Result]:
    """OCAR without settings over ER, with the curvature of wide layers in parts."""
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # torchvision may not fit to PyTorch
        yield Skipped(name="wide", reason=f"not installed: pip install timm ({error})")
        return
    for name, options in NETWORKS.items():
        models = [timm.create_model(name, num_classes=CLASSES, **options) for _ in range(2)]
        sides = {
            method.upper(): stream_batch(_learner(method, model, setup), classes=CLASSES)
            for method, model in zip(("er", "ocar"), models, strict=True)
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The curvature of these layers")
            times = take_turns(sides, setup)
        yield compare(
            f"wide, {name}",
            times,
            "OCAR",
            "ER",
            note="32 px, 10 new and 10 replayed images, three passes",
            target=Target(relation="at most", value=2.5),
        )


def _learner(method: str, model: nn.Module, setup: Setup) -> Learner:
    """A learner with a full memory and, for OCAR, no settings."""
    given: dict[str, Any] = {"lr": 0.01} if method == "er" else {}
    learner = make_learner(
        method,
        model.to(setup.device),
        memory=MEMORY,
        classes=range(CLASSES),
        normalize=_centre,
        **given,
    )
    learner.remember(*noise(MEMORY, classes=CLASSES, device=setup.device))
    return learner


def _centre(x: torch.Tensor) -> torch.Tensor:
    return x / 127.5 - 1
