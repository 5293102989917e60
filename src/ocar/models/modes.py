"""Train and eval mode, compiled or not, and what learns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode and without gradients; afterwards as before."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
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
        return  # setting the modes takes longer than this check
    model.train()
    for module in frozen:
        module.eval()


def learning(model: nn.Module) -> dict[str, nn.Module]:
    """The names of the parameters that learn, each with the module that has it."""
    return {
        f"{path}.{name}" if path else name: module
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad
    }


def changed_learning(model: nn.Module, before: Mapping[str, nn.Module]) -> list[str]:
    """The names of the parameters for which :func:`learning` is not what it was ``before``."""
    now = learning(model)
    return sorted(
        name for name in before.keys() | now.keys() if before.get(name) is not now.get(name)
    )


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` has compiled the model or a part of it."""
    if "torch._dynamo" not in sys.modules:  # importing it takes seconds
        return False
    kind = torch._dynamo.OptimizedModule
    return any(isinstance(m, kind) or m._compiled_call_impl is not None for m in model.modules())


def uncompiled(model: nn.Module) -> AbstractContextManager[object]:
    """Inside it a compiled model runs as written, so that new hooks on its layers are called."""
    if not is_compiled(model):
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
