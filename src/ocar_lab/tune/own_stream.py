"""A stream of one's own from its name: ``module:function``, or a folder of images."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ocar.datasets import load_classes, load_domains
from ocar.datasets.pictures import is_picture
from ocar.errors import ConfigError, OcarError
from ocar.streams import ArrayStream, DomainIncremental, TaskArrays
from ocar_lab.plugins import find_function

Batches = Iterable[tuple[Any, Any]]


def open_stream(
    name: str, *, size: int, at_a_time: int, seed: int
) -> tuple[nn.Module | None, Batches]:
    """A model, if the function gives one, and batches.

    Args:
        name: ``module:function``, or a folder of ``class/*.image`` or ``domain/class/*.image``.
        size: Height and width of images in a folder.
        at_a_time: Classes that come at a time, if a folder has no domains.
        seed: Seed of the order of images in a folder.

    Raises:
        ConfigError: It is neither, or the function cannot be called.
        DataError: The images cannot be read.
    """
    if Path(name).is_dir():
        return None, _images(Path(name), size=size, at_a_time=at_a_time, seed=seed)
    module, colon, function = name.partition(":")
    if not (colon and module and function) or os.sep in name:
        raise ConfigError(
            f"Invalid --stream {name!r}. Must be MODULE:FUNCTION, as in import MODULE, or a folder "
            "of images."
        )
    return _call(name, function)


def _call(name: str, function: str) -> tuple[nn.Module | None, Batches]:
    """What a function of a module returns."""
    found = find_function(name, flag="--stream")
    try:
        made = found()
    except Exception as error:
        raise ConfigError(
            f"Invalid --stream {name}: the call {function}() raised {type(error).__name__}: "
            f"{error}. It is called without arguments."
        ) from error
    model, batches = made if _has_model(made) else (None, made)
    if not isinstance(batches, Iterable):
        raise ConfigError(
            f"Invalid --stream {name}: it returned a {type(batches).__name__}. Must be batches "
            "(x, y) that can be iterated, or a tuple (model, batches)."
        )
    if iter(batches) is batches:  # of a generator function
        batches = _collect(name, batches)
    return model, batches


def _collect(name: str, batches: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    try:
        found.extend(batches)
    except OcarError:  # of a reader, which names the file and the row
        raise
    except Exception as error:
        raise ConfigError(
            f"Invalid --stream {name}: after {len(found)} batches it raised "
            f"{type(error).__name__}: {error}."
        ) from error
    return found


def _has_model(made: Any) -> bool:
    return isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)


def _images(folder: Path, *, size: int, at_a_time: int, seed: int) -> Batches:
    """The training images of a folder: its domains one by one, or a few classes at a time."""
    depths = {len(p.relative_to(folder).parts) for p in folder.rglob("*") if is_picture(p.name)}
    if depths not in ({2}, {3}):
        raise ConfigError(
            f"Invalid --stream {folder}: it must hold images in class/ or in domain/class/ folders."
        )
    stream: ArrayStream | DomainIncremental
    if depths == {3}:
        stream = DomainIncremental(load_domains(folder, size=size), validation=0, seed=seed)
    else:
        arrays = load_classes(folder, size=size)
        parts = [
            torch.isin(arrays.y_train, torch.arange(start, start + at_a_time))
            for start in range(0, len(arrays.classes), at_a_time)
        ]
        tasks = [TaskArrays(x_train=arrays.x_train[p], y_train=arrays.y_train[p]) for p in parts]
        stream = ArrayStream(tasks, validation=0, seed=seed)
    return [(batch.x, batch.y) for batch in stream]
