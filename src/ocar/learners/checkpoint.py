"""A learner back from its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from ocar.augment import AUGMENTATIONS
from ocar.config import CUSTOM, from_plain
from ocar.errors import CheckpointError, ConfigError
from ocar.images import CropFlip, Normalize
from ocar.learners.base import Learner
from ocar.learners.registry import METHODS, TRANSFORMS
from ocar.learners.settings import Augmenter, Normalizer
from ocar.learners.transform import TransformSettings
from ocar.state import load_state

_METHODS = {m.settings.__name__: m for m in METHODS.values()}
_KINDS = (Normalize, CropFlip, *AUGMENTATIONS)
_TRANSFORM_SETTINGS = {t.__name__: t for t in TRANSFORMS.values()}


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    normalize: Normalizer | None = None,
    augment: Augmenter | None = None,
) -> Learner:
    """The learner that :meth:`Learner.save` wrote; it goes on exactly where that one was.

    Args:
        path: The checkpoint.
        model: A model of the same architecture. Its weights are replaced, its head enlarged.
        normalize: The learner's normalisation, needed if it was a function of your own.
        augment: The learner's augmentation, needed if it was a function of your own.

    Raises:
        CheckpointError: The file is damaged, too new, or of another model.
    """
    tensors, values = load_state(path)
    functions = {"normalize": normalize, "augment": augment}
    given: dict[str, Any] = {name: f for name, f in functions.items() if f is not None}
    try:
        plain = {**values["settings"], **dict.fromkeys(given)}
        _reject_custom(plain)
        method = _METHODS[values["method"]]
        settings = replace(from_plain(method.settings, plain, kinds=_KINDS), **given)
        transform: TransformSettings | None = None
        if values["transform"] is not None:
            kind = _TRANSFORM_SETTINGS[values["transform"]]
            transform = from_plain(kind, values["transform_settings"])
        learner = method.learner(model, settings, transform=transform)
        learner.load_state(tensors, values)
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{str(path)!r} does not describe a learner: {error}") from error
    return learner


def _reject_custom(plain: Mapping[str, Any]) -> None:
    for name, value in plain.items():
        if isinstance(value, Mapping) and value.get("kind") == CUSTOM:
            raise CheckpointError(
                f"The learner was saved with {name}={value.get('repr')}, which a file cannot "
                f"hold. Give it again: load(path, model, {name}=...)."
            )
