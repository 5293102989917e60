"""Train and eval mode, compiled or not, and what learns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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


def which_learn(model: nn.Module) -> tuple[tuple[nn.Module, ...], tuple[bool, ...]]:
    """All modules, and whether each of their parameters learns.

    It is asked for every batch, so it does without the slow iterators of PyTorch.
    """
    modules: dict[nn.Module, None] = {}
    learn: list[bool] = []
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is None or module in modules:
            continue
        modules[module] = None
        own = module._parameters.values()
        learn += [p is not None and p.requires_grad for p in own]
        waiting += module._modules.values()
    return tuple(modules), tuple(learn)


class Learning:
    """What learns in a model at the time when this is made."""

    def __init__(self, model: nn.Module) -> None:
        self._which = which_learn(model)
        self._names = _names(model)

    def changes(self, model: nn.Module) -> list[str]:
        """The names of the parameters that learn now and did not, the other way, or elsewhere."""
        if which_learn(model) == self._which:
            return []
        before, now = self._names, _names(model)
        return sorted(n for n in before.keys() | now.keys() if before.get(n) is not now.get(n))


def _names(model: nn.Module) -> dict[str, nn.Module]:
    """The names of the parameters that learn, each with the module that has it."""
    return {
        f"{path}.{name}" if path else name: module
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad
    }


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
