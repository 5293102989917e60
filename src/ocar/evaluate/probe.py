"""Probed accuracy: the test accuracy of a linear classifier fitted on the features.

The features are the inputs of the model's head, in eval mode: of the weights that predict, and of
the slow weights where both predict. Where predictions compare features of unit length (SCR), the
probe takes these. The classifier is fitted on the training data, in a few augmented passes, see
:mod:`ocar.evaluate.logistic`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.graph import release_memory
from ocar.config import require_sizes
from ocar.errors import ConfigError, InputError, ModelError
from ocar.evaluate.logistic import fit_probe
from ocar.models.modes import evaluating
from ocar.rng import make_generator
from ocar.streams.base import Labelled, TaskStream
from ocar.structure import Inputs, Structure, apply_whole, call, first_input

Augmenter = Callable[[Tensor, torch.Generator], Tensor]

_ONE_AT_A_TIME = threading.Lock()
"""Runs that share a device probe in turn: it takes as long, and less memory."""


class ModelLearner(Protocol):
    """A learner whose features can be probed.

    If it has ``settings`` with ``augment`` and ``head``, these are the defaults.
    """

    @property
    def model(self) -> nn.Module:
        """The network."""

    def predict(self, x: Any, /) -> Tensor:
        """Outputs for raw samples ``(n, ...)``, through ``model`` in eval mode."""


def probe_accuracy(
    learner: nn.Module | ModelLearner,
    train: Labelled | Iterable[Labelled],
    test: Labelled | Iterable[Labelled],
    *,
    passes: int = 3,
    augment: Augmenter | None = None,
    normalize: Callable[[Tensor], Tensor] | None = None,
    head: str | None = None,
    seed: int = 0,
    chunk: int = 1000,
    inverse_penalty: float = 1.0,
    max_iter: int = 200,
) -> float:
    """Test accuracy of a linear classifier fitted on the features of the training data.

    The learner does not change.

    Args:
        learner: A learner, or any module.
        train: Raw training samples ``(n, ...)`` and labels ``(n,)``, or pieces of them.
        test: Raw test samples and labels, or pieces of them.
        passes: Passes through the training data, each with its own augmentation.
        augment: Augmentation of raw training samples; by default the learner's.
        normalize: Applied to the inputs of a module; a learner has its own.
        head: Name of the layer whose inputs are the features; by default the learner's head or
            the last linear layer.
        seed: Seed of the augmentation.
        chunk: Most samples that go through the model at once.
        inverse_penalty: C of the logistic regression.
        max_iter: Most iterations of its fit.
    """
    require_sizes(passes=passes, chunk=chunk)
    if normalize is not None and not isinstance(learner, nn.Module):
        raise ConfigError("Invalid normalize. A learner brings its own.")
    augment = augment or getattr(getattr(learner, "settings", None), "augment", None)
    layer = _find_head(learner, head)
    parameter = next(layer.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    generator = make_generator(seed, "probe", device)

    predict: Any = getattr(learner, "predict", None)
    if getattr(getattr(learner, "settings", None), "prediction", None) == "both":
        predict = partial(predict, prediction="slow")
    of_unit_length = getattr(getattr(learner, "objective", None), "unit_features", False)

    def forward(x: Inputs) -> None:
        if isinstance(learner, nn.Module):
            with evaluating(learner):
                call(learner, x if normalize is None else apply_whole(normalize, x))
        else:
            predict(x)

    def extract(x: Inputs, augment: Augmenter | None = None) -> Tensor:
        parts = []
        for part in x.split(chunk):
            own = part.to(device)
            own = own if augment is None else apply_whole(augment, own, generator)
            parts.append(_inputs_of(layer, forward, own))
        features = torch.cat(parts)
        return functional.normalize(features) if of_unit_length else features

    train_pieces = _pieces(train)
    features, labels = [], []
    for x, _ in itertools.islice(train_pieces, 1):
        forward(x[:1].to(device))  # a first prediction may send the memory through the model too
    for _ in range(passes):
        for x, y in train_pieces:
            features.append(extract(x, augment))
            labels.append(y.to(device))
    if not features:
        raise InputError("There is no training data to fit a probe on.")
    probe = fit_probe(
        torch.cat(features), torch.cat(labels), inverse_penalty=inverse_penalty, max_iter=max_iter
    )
    correct = total = 0
    for x, y in _pieces(test):
        correct += int((probe.predict(extract(x)) == y.to(device)).sum())
        total += len(y)
    if total == 0:
        raise InputError("There is no test data to try a probe on.")
    return correct / total


def check_probe(learner: Any) -> None:
    """Raise a ``ModelError`` now, not at the end of a run, if a learner cannot be probed."""
    _find_head(learner, None)


def probe_stream(learner: Any, stream: TaskStream, *, seed: int = 0) -> float:
    """Probed accuracy of a learner, or of any module, on all data of a stream.

    The position of the stream does not change. The augmentation follows from the seed.
    """
    train, test = (_TaskPieces(part, stream.tasks) for part in (stream.training, stream.test))
    with _ONE_AT_A_TIME:
        accuracy = probe_accuracy(learner, train, test, seed=seed)
        release_memory(getattr(learner, "device", torch.device("cpu")))
    return accuracy


class _TaskPieces:
    """The data of one task after another, gathered again in each pass."""

    def __init__(self, part: Callable[[int], Labelled], tasks: int) -> None:
        self.part = part
        self.tasks = tasks

    def __iter__(self) -> Iterator[Labelled]:
        return (self.part(task) for task in range(self.tasks))


def _pieces(data: Labelled | Iterable[Labelled]) -> Iterable[Labelled]:
    """Labelled samples in pieces that can be iterated several times."""
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], (Tensor, Structure)):
        x, y = data
        assert isinstance(y, Tensor)
        return [(x, y)]
    return list(data) if isinstance(data, Iterator) else data


@torch.no_grad()
def _inputs_of(layer: nn.Module, forward: Callable[[Inputs], None], x: Inputs) -> Tensor:
    """What a layer is given in a forward pass of ``x``, ``(n, d)``."""
    recorded: list[Tensor] = []

    def record(module: nn.Module, *given: Any) -> None:
        recorded.append(first_input(*given).detach().clone())

    with layer.register_forward_pre_hook(record, with_kwargs=True):
        forward(x)
    features = torch.cat(recorded) if recorded else torch.empty(0)
    if features.dim() != 2 or len(features) != len(x):
        raise ModelError(
            f"The head took inputs of {[tuple(f.shape) for f in recorded]} for "
            f"{len(x)} samples. Must be one row (n, d) a sample."
        )
    return features


def _find_head(learner: Any, name: str | None) -> nn.Module:
    """The layer of a name, by default the learner's head or the last linear one."""
    model = learner if isinstance(learner, nn.Module) else getattr(learner, "model", None)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{type(learner).__name__} cannot be probed. Must be a module, or have one as model."
        )
    name = name or getattr(getattr(learner, "settings", None), "head", None)
    if name is not None:
        found = dict(model.named_modules()).get(name)
        if found is None:
            raise ModelError(f"Invalid head={name!r}. The model has no such layer.")
        return found
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ModelError(f"{type(model).__name__} has no nn.Linear layer to take as its head.")
    return linear[-1]
