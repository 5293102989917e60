"""A service from a checkpoint that anybody has saved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from ocar.checkpoint import load
from ocar.errors import CheckpointError, ConfigError
from ocar.files import make_folder, read_file, write_whole
from ocar.learner import Learner
from ocar.methods.settings import Augmenter, Normalizer
from ocar.service import history
from ocar.service.service import Service

ORIGIN = "origin"
"""File with the SHA-256 of the checkpoint that a folder began with."""


def open_service(
    checkpoint: Path,
    state: Path,
    *,
    model: Callable[[], nn.Module],
    normalize: Normalizer | None = None,
    augment: Augmenter | None = None,
    **options: Any,
) -> Service:
    """The service of a saved learner: new, or as it was left.

    The checkpoint is only read. A folder that has begun needs it no more.

    Args:
        checkpoint: What :meth:`ocar.Learner.save` wrote.
        state: Folder of the service; one folder belongs to one checkpoint.
        model: Makes a model of the architecture in the checkpoint.
        normalize: The learner's normalisation, if it is a function of your own.
        augment: The learner's augmentation, if it is a function of your own.
        **options: Those of :class:`Service`.

    Raises:
        ConfigError: The folder began with another checkpoint.
        CheckpointError: There is no checkpoint, or it is damaged or of another model.
    """

    def restore(path: Path) -> Learner:
        return load(path, model(), normalize=normalize, augment=augment)

    def begin() -> Learner:
        if not checkpoint.is_file():
            raise CheckpointError(f"There is no checkpoint {str(checkpoint)!r}.")
        write_whole(state / ORIGIN, _digest(checkpoint))
        return restore(checkpoint)

    make_folder(state)
    _check_origin(checkpoint, state)
    return Service(state, new=begin, load=restore, **options)


def _check_origin(checkpoint: Path, state: Path) -> None:
    """Raise if the checkpoint is not the one that the folder began with."""
    origin = state / ORIGIN
    if not history.find(state) or not checkpoint.is_file() or not origin.is_file():
        return
    if _digest(checkpoint) != read_file(origin):
        raise ConfigError(
            f"{state} began with another checkpoint than {checkpoint}. Give this one a folder of "
            "its own: --state NEW-FOLDER"
        )


def _digest(path: Path) -> bytes:
    return hashlib.sha256(read_file(path)).hexdigest().encode()
