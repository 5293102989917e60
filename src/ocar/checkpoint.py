"""A learner back from its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ocar import accel
from ocar.augment import AUGMENTATIONS, CropFlip, Normalize
from ocar.config import CUSTOM, from_plain
from ocar.errors import CheckpointError, ConfigError, OcarError
from ocar.guard import Guard
from ocar.learner import Learner
from ocar.methods.registry import METHODS, TRANSFORMS
from ocar.methods.scr import SCRSettings
from ocar.methods.settings import Augmenter, LearnerSettings, Normalizer
from ocar.methods.transform import TransformSettings
from ocar.models.latent import learned_part
from ocar.state import load_newest, load_state, without_prefix

_KINDS = (Normalize, CropFlip, *AUGMENTATIONS)

CHANGEABLE = (
    "lr", "passes", "replay_batch", "partial_replay",
    "divergence", "ema", "n_new", "replay_weight", "tau", "tau_step",
    "alpha", "beta", "strength",
)  # fmt: skip
"""Settings that :func:`load` can change: no part of the saved state has their shape or meaning."""

_MOST_UNSEEN = 1 << 22  # largest capacity of a memory that a file leaves empty


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    normalize: Normalizer | None = None,
    augment: Augmenter | None = None,
    ranks: accel.Ranks | None = None,
    **settings: Any,
) -> Learner:
    """The learner that :meth:`Learner.save` wrote; it goes on exactly where that one was.

    A file that is cut short, altered in any byte, of another model, of a newer version or with NaN
    in it is refused. Then the checkpoint before it, ``NAME.previous``, is used if it is good, with
    a :class:`~ocar.errors.CheckpointWarning`.

    Args:
        path: The checkpoint.
        model: A model of the same architecture. Its weights are replaced, its head enlarged. The
            backbone of a :class:`~ocar.LatentReplay` is not in the file: it must be the same.
        normalize: The learner's normalisation, needed if it was a function of your own.
        augment: The learner's augmentation, needed if it was a function of your own.
        ranks: The processes that go on together; there may have been more or fewer before.
        **settings: Settings to change from now on, such as ``lr``; see :data:`CHANGEABLE`.

    Raises:
        ConfigError: A setting cannot be changed, is not the method's, or is out of range.
        CheckpointError: The file is damaged, too new, or of another model.
        ModelError: The model has no such head as the file names.
    """
    functions = {"normalize": normalize, "augment": augment}
    given: dict[str, Any] = {name: f for name, f in functions.items() if f is not None}
    return load_newest(path, lambda file: _load(file, model, given, settings, ranks))


def _load(
    path: Path,
    model: nn.Module,
    given: Mapping[str, Any],
    changes: Mapping[str, Any],
    ranks: accel.Ranks | None,
) -> Learner:
    tensors, values = load_state(path)
    with _described_by(path):
        plain = {**values["settings"], **dict.fromkeys(given)}
        _reject_custom(plain)
        _check_capacity(plain.get("memory", 0), tensors)
        method = METHODS.find(values["method"])
        settings = replace(from_plain(method.settings, plain, kinds=_KINDS), **given)
        transform: TransformSettings | None = None
        if values["transform"] is not None:
            kind = TRANSFORMS.find(values["transform"])
            transform = from_plain(kind, values["transform_settings"])
        _check_model(settings, tensors, model)
        guard = None if values["guard"] is None else from_plain(Guard, values["guard"])
    settings, transform = _change(settings, transform, changes)
    with _described_by(path):
        learner = Learner(model, settings, transform=transform, guard=guard, ranks=ranks)
        learner.load_state(tensors, values)
        if learner.ranks is not None:
            learner.ranks.require_equal("checkpoints", f"one after {learner.batches} batches")
    return learner


@contextmanager
def _described_by(path: Path) -> Iterator[None]:
    """Inside, whatever torch, numpy and a learner's parts say of damaged values is one error."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OcarError) and not isinstance(error, ConfigError):
            raise
        raise CheckpointError(f"{str(path)!r} does not describe a learner: {error}") from error


def _change(
    settings: LearnerSettings, transform: TransformSettings | None, changes: Mapping[str, Any]
) -> tuple[LearnerSettings, TransformSettings | None]:
    """Both with some settings changed.

    Raises:
        ConfigError: A setting cannot be changed, is not the method's, or is out of range.
    """
    own = vars(settings)
    rewriting = {} if transform is None else vars(transform)
    for name, value in changes.items():
        if name not in CHANGEABLE or name not in own | rewriting:
            can = ", ".join(n for n in CHANGEABLE if n in own | rewriting)
            has = name in own | rewriting
            why = "cannot be changed in a saved learner" if has else "is not one of its settings"
            raise ConfigError(f"{name} {why}. These can be changed: {can}.")
        if name == "lr" and (value is None) != (settings.lr is None):
            saved = "chooses its own" if settings.lr is None else f"has lr={settings.lr}"
            raise ConfigError(f"Invalid lr={value}. The saved learner {saved} and goes on like it.")
    changed = replace(settings, **{n: v for n, v in changes.items() if n in own})
    rest = {n: v for n, v in changes.items() if n not in own}
    return changed, replace(transform, **rest) if rest and transform is not None else transform


def _check_capacity(memory: Any, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a memory with more slots than the file holds, before it is made."""
    targets = tensors.get("memory.columns.y")
    slots = _MOST_UNSEEN if targets is None else targets.numel()
    described = isinstance(memory, Mapping)
    capacity = memory.get("arguments", {}).get("capacity", 0) if described else memory
    if capacity > slots:
        raise CheckpointError(
            f"The checkpoint says memory={capacity} and has at most {slots} slots."
        )


def _check_model(
    settings: LearnerSettings, tensors: Mapping[str, Tensor], model: nn.Module
) -> None:
    """Refuse another model, and a projection that is larger than the file holds."""
    own = learned_part(model).state_dict()
    for name, tensor in without_prefix("model", tensors).items():
        if name in own and tensor.shape[1:] != own[name].shape[1:]:  # a head may have grown
            raise CheckpointError(
                f"The checkpoint is of another model: {name!r} has shape {tuple(tensor.shape)}, "
                f"here {tuple(own[name].shape)}."
            )
    if isinstance(settings, SCRSettings):  # in others it is at most as long as the features
        parts = without_prefix("objective.projection", tensors).values()
        widest = max((max(part.shape, default=0) for part in parts), default=0)
        if settings.projection > widest:
            raise CheckpointError(
                f"The checkpoint says projection={settings.projection} and has at most {widest}."
            )


def _reject_custom(plain: Mapping[str, Any]) -> None:
    for name, value in plain.items():
        if isinstance(value, Mapping) and value.get("kind") == CUSTOM:
            raise CheckpointError(
                f"The learner was saved with {name}={value.get('repr')}, which a file cannot "
                f"hold. Give it again: load(path, model, {name}=...)."
            )
