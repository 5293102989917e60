"""Probed accuracy of a learner or a module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ocar.accel.graph import release_memory
from ocar.errors import ConfigError, InputError, ModelError
from ocar.evaluate.probe.features import Augmenter, FeatureExtractor, ModelLearner, find_head
from ocar.evaluate.probe.logistic import fit_probe
from ocar.rng import make_generator
from ocar.streams.base import Labelled, TaskStream

_TURNS = threading.Lock()
"""Runs that share a device probe one after another: it takes as long, and less memory."""


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

    Nothing about the learner changes.

    Args:
        learner: A learner, or any module.
        train: Raw training samples ``(n, ...)`` and labels ``(n,)``, or pieces of them.
        test: Raw test samples and labels, or pieces of them.
        passes: How often to go through the training data, each time augmented afresh.
        augment: Augmentation of raw training samples; by default the learner's.
        normalize: Applied to what goes into a module; a learner brings its own.
        head: Name of the layer whose input are the features; by default the learner's or the
            last linear layer.
        seed: Seed of the augmentation.
        chunk: Most samples that go through the model at once.
        inverse_penalty: C of the logistic regression.
        max_iter: Most iterations of its fit.
    """
    if passes < 1 or chunk < 1:
        raise ConfigError(f"Invalid {passes=}, {chunk=}. Must both be at least 1.")
    settings = getattr(learner, "settings", None)
    augment = augment or getattr(settings, "augment", None)
    head = head or getattr(settings, "head", None)
    extract = FeatureExtractor(learner, head=head, normalize=normalize, chunk=chunk)
    generator = make_generator(seed, "probe", extract.device)
    train_pieces, test_pieces = _pieces(train), _pieces(test)
    features, labels = [], []
    for _ in range(passes):
        for x, y in train_pieces:
            features.append(extract(x, augment=augment, generator=generator))
            labels.append(y.to(extract.device))
    if not features:
        raise InputError("There is no training data to fit a probe on.")
    probe = fit_probe(
        torch.cat(features),
        torch.cat(labels),
        inverse_penalty=inverse_penalty,
        max_iter=max_iter,
    )
    correct = total = 0
    for x, y in test_pieces:
        correct += int((probe.predict(extract(x)) == y.to(extract.device)).sum())
        total += len(y)
    if total == 0:
        raise InputError("There is no test data to try a probe on.")
    return correct / total


def check_probe(learner: Any) -> None:
    """Refuse a learner that cannot be probed, before hours are spent on it.

    Raises:
        ModelError: It is no module and has none, or there is no layer to take as its head.
    """
    model = learner if isinstance(learner, nn.Module) else getattr(learner, "model", None)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{type(learner).__name__} cannot be probed. Must be a module, or have one as model."
        )
    find_head(model, getattr(getattr(learner, "settings", None), "head", None))


def probe_stream(learner: Any, stream: TaskStream, *, seed: int = 0) -> float:
    """Probed accuracy of a learner on all data of a stream.

    Args:
        learner: A learner, or any module.
        stream: Where training and test data are from; it is not moved.
        seed: Seed of the augmentation.
    """
    train, test = (_TaskPieces(part, stream.tasks) for part in (stream.training, stream.test))
    with _TURNS:
        accuracy = probe_accuracy(learner, train, test, seed=seed)
        release_memory(getattr(learner, "device", torch.device("cpu")))
    return accuracy


class _TaskPieces:
    """The data of one task after another, gathered anew for each pass."""

    def __init__(self, part: Callable[[int], Labelled], tasks: int) -> None:
        self.part = part
        self.tasks = tasks

    def __iter__(self) -> Iterator[Labelled]:
        return (self.part(task) for task in range(self.tasks))


def _pieces(data: Labelled | Iterable[Labelled]) -> Iterable[Labelled]:
    """Labelled samples in pieces, which can be gone through several times."""
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Tensor):
        x, y = data
        assert isinstance(y, Tensor)
        return [(x, y)]
    return list(data) if isinstance(data, Iterator) else data
