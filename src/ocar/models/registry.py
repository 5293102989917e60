"""Models by name, initialised from a seed of their own."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from ocar.config import require
from ocar.errors import ConfigError
from ocar.models.mlp import MLP, LinearModel
from ocar.models.resnet import ResNet18, SlimResNet18
from ocar.models.transformer import TextTransformer
from ocar.registry import Registry
from ocar.rng import derive_seed

ImageShape = tuple[int, int, int]
"""Channels, height and width of one image."""


def _slim_resnet18(image_shape: ImageShape, classes: int) -> nn.Module:
    channels, height, width = image_shape
    if height != width:
        raise ConfigError(f"Invalid {image_shape=}. slim-resnet18 takes square images.")
    return SlimResNet18(height, channels=channels, classes=classes)


MODELS: Registry[Callable[[ImageShape, int], nn.Module]] = Registry(
    "model",
    {
        "mlp": lambda shape, classes: MLP(math.prod(shape), classes=classes),
        "mlp-256": lambda shape, classes: MLP(math.prod(shape), hidden=(256,), classes=classes),
        "slim-resnet18": _slim_resnet18,
        "resnet18": lambda shape, classes: ResNet18(channels=shape[0], classes=classes),
        "text-transformer": lambda shape, classes: TextTransformer(shape[2], classes=classes),
        "linear": lambda shape, classes: LinearModel(math.prod(shape), outputs=classes),
    },
)
"""Models by name: functions of ``(image_shape, classes)``."""


def make_model(
    name: str, *, image_shape: ImageShape, classes: int = 16, seed: int = 0
) -> nn.Module:
    """Build a model on the CPU with weights that depend only on ``seed``.

    PyTorch's initialisers draw from the global generator, so it is seeded here and restored.

    Args:
        name: One of :data:`MODELS`.
        image_shape: Channels, height and width of the images.
        classes: Outputs of the model's ``head``.
        seed: The seed of the whole experiment.

    Returns:
        A module whose last layer is an ``nn.Linear`` called ``head``, with a method ``features``
        for the inputs of the head.
    """
    build = MODELS.find(name)
    valid = len(image_shape) == 3 and min(image_shape) >= 1
    require("image_shape", image_shape, valid, "(channels, height, width)")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed: it would also seed every accelerator, which is not restored.
        torch.default_generator.manual_seed(derive_seed(seed, "model"))
        return build(image_shape, classes)
