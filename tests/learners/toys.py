"""Small models and streams for the tests of the learners."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ocar.accel import OPERATIONS
from ocar.learner import Learner
from ocar.make import register
from ocar.methods.objective import Forward, Outcome, Step
from ocar.registry import REGISTRIES

RAW = {"standardize": False}
"""For a test that is by hand, with the inputs and the targets as they are."""


def seeded(make, seed: int = 0) -> nn.Module:
    """A model with its own fixed weights, the global generator untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def mlp(units: int = 4, *, inputs: int = 6) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, units)))


def convnet(units: int = 4) -> nn.Module:
    """With BatchNorm in train mode, in-place activations and a 1×1 convolution."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(4 * 36, units),
        )
    )


def vectors(count: int, labels: list[int], *, seed: int = 0, size: int = 10) -> Iterator:
    """Batches of separable vectors: each class has a centre of its own."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(labels) + 1, 6, generator=torch.Generator().manual_seed(99)) * 3
    for _ in range(count):
        y = torch.tensor(labels)[torch.randint(len(labels), (size,), generator=generator)]
        yield centres[y] + torch.randn(size, 6, generator=generator), y


def images(count: int, labels: list[int], *, seed: int = 0, size: int = 10) -> Iterator:
    """Batches of uint8 images whose brightness pattern tells the class."""
    generator = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(99)
    patterns = torch.randint(0, 200, (max(labels) + 1, 1, 8, 8), generator=fixed)
    for _ in range(count):
        y = torch.tensor(labels)[torch.randint(len(labels), (size,), generator=generator)]
        noise = torch.randint(0, 56, (size, 1, 8, 8), generator=generator)
        yield (patterns[y] + noise).to(torch.uint8), y


PLUGINS = Path(__file__).parents[1] / "plugins"
"""Where plugins for the tests are; it is on nobody's path."""


@contextmanager
def names_kept() -> Iterator[None]:
    """Names that are registered inside are forgotten afterwards."""
    tables = list(REGISTRIES.values())
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)


@contextmanager
def registered(**things: Any) -> Iterator[None]:
    """Names for things, inside only."""
    with names_kept():
        for name, thing in things.items():
            register(name, thing)
        yield


@contextmanager
def plugin(name: str) -> Iterator[ModuleType]:
    """A module of :data:`PLUGINS`, imported inside only."""
    sys.path.insert(0, str(PLUGINS))
    try:
        with names_kept():
            yield importlib.import_module(name)
    finally:
        sys.path.remove(str(PLUGINS))
        sys.modules.pop(name, None)


def never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on do as on a GPU: by the plain definitions, without looking at a value."""
    for module in [m for name, m in sys.modules.items() if name.startswith("ocar.")]:
        if hasattr(module, "known") and callable(module.known):
            monkeypatch.setattr(module, "known", lambda flag: None)
    for operation in OPERATIONS.values():
        monkeypatch.setattr(operation, "_choices", [])


def weights(model: nn.Module) -> Tensor:
    """A copy of all parameters, flat."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def flat_gradient(model: nn.Module, loss: Tensor) -> Tensor:
    """The gradient of a loss for all parameters, flat; its graph stays."""
    grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([grad.flatten() for grad in grads])


def everything(learner) -> dict[str, Tensor]:
    """A copy of all state of a learner, for comparing before and after."""
    tensors, values = learner.state()
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    copies["values"] = torch.frombuffer(bytearray(repr(values).encode()), dtype=torch.uint8)
    return copies


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def recorded(learner: Learner) -> list[tuple[Step, nn.Module, Outcome, list[Tensor]]]:
    """Each step from now on: the batch, the model before it, its outcome, the model's inputs."""
    steps: list[tuple[Step, nn.Module, Outcome, list[Tensor]]] = []
    objective: Any = learner.objective
    original = type(objective).__call__

    class Recording(type(objective)):  # type: ignore[misc]
        def __call__(self, forward: Forward, step: Step) -> Outcome:
            before, inputs = copy.deepcopy(learner.model), []
            outcome = original(self, lambda x: (inputs.append(x), forward(x))[1], step)
            steps.append((step, before, replace(outcome, loss=outcome.loss.detach()), inputs))
            return outcome

    objective.__class__ = Recording
    return steps


class Spoiled:
    """An objective whose loss is not a number."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        outcome = self.inner(forward, step)
        return replace(outcome, loss=outcome.loss * float("nan"))


@contextmanager
def spoiled(learner: Learner) -> Iterator[None]:
    """Inside it the loss of a learner is not a number."""
    inner = learner.objective
    learner._steps.objective = Spoiled(inner)  # type: ignore[assignment]
    try:
        yield
    finally:
        learner._steps.objective = inner
