"""Train and eval mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode and without gradients; afterwards as before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def train_mode_(model: nn.Module) -> None:
    """Train mode, except for a frozen BatchNorm, whose statistics are frozen too."""
    modules = list(model.modules())
    frozen = [
        module
        for module in modules
        if isinstance(module, _BatchNorm) and module.affine and not module.weight.requires_grad
    ]
    learning = sum(module.training for module in modules)
    if learning == len(modules) - len(frozen) and not any(module.training for module in frozen):
        return  # setting it takes longer than this look
    model.train()
    for module in frozen:
        module.eval()
