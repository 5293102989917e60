"""From raw samples to what goes into the head of a model, in eval mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ocar.errors import ConfigError, ModelError

Augmenter = Callable[[Tensor, torch.Generator], Tensor]


class ModelLearner(Protocol):
    """A learner whose features can be probed.

    It may have ``settings`` with ``augment`` and ``head``, which are then used by default.
    """

    @property
    def model(self) -> nn.Module:
        """What it learns."""

    def predict(self, x: Tensor, /) -> Tensor:
        """Outputs for raw samples ``(n, ...)``, through ``model`` in eval mode."""


class FeatureExtractor:
    """From raw samples to what goes into the head of a model.

    Args:
        learner: A learner or a module.
        head: Name of the head; by default the last linear layer.
        normalize: Applied to what goes into a module.
        chunk: Most samples at once.
    """

    def __init__(
        self,
        learner: nn.Module | ModelLearner,
        *,
        head: str | None,
        normalize: Callable[[Tensor], Tensor] | None,
        chunk: int,
    ) -> None:
        self.forward: Callable[[Tensor], Tensor] = self._through_module
        if isinstance(learner, nn.Module):
            self.model = learner
        else:
            if normalize is not None:
                raise ConfigError("Invalid normalize. A learner brings its own.")
            self.model, self.forward = learner.model, learner.predict
        self.layer = find_head(self.model, head)
        self.normalize = normalize
        self.chunk = chunk
        parameter = next(self.layer.parameters(), None)
        self.device = torch.device("cpu") if parameter is None else parameter.device

    @torch.no_grad()
    def __call__(
        self,
        x: Tensor,
        *,
        augment: Augmenter | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Features ``(n, d)`` of raw samples ``(n, ...)``."""
        parts = []
        for part in x.split(self.chunk):
            part = part.to(self.device)
            if augment is not None:
                assert generator is not None
                part = augment(part, generator)
            with _recorded_input(self.layer) as recorded:
                self.forward(part)
            features = torch.cat(recorded) if recorded else torch.empty(0)
            if features.dim() != 2 or len(features) != len(part):
                raise ModelError(
                    f"The head took inputs of {[tuple(f.shape) for f in recorded]} for "
                    f"{len(part)} samples. Must be one row (n, d) a sample."
                )
            parts.append(features)
        return torch.cat(parts)

    def _through_module(self, x: Tensor) -> Tensor:
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            outputs: Tensor = self.model(x if self.normalize is None else self.normalize(x))
            return outputs
        finally:
            for module in training:
                module.training = True


@contextmanager
def _recorded_input(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what goes into a layer."""
    recorded: list[Tensor] = []

    def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        recorded.append(inputs[0].detach().clone())

    handle = layer.register_forward_pre_hook(record)
    try:
        yield recorded
    finally:
        handle.remove()


def find_head(model: nn.Module, name: str | None) -> nn.Module:
    """The layer called ``name``, or the last linear one."""
    if name is not None:
        found = dict(model.named_modules()).get(name)
        if found is None:
            raise ModelError(f"Invalid head={name!r}. The model has no such layer.")
        return found
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ModelError(f"{type(model).__name__} has no nn.Linear layer to take as its head.")
    return linear[-1]
