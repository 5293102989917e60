"""What a learner accepts; all else is refused before anything changes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ocar.errors import InputError


class Item(NamedTuple):
    """What one sample of a stream looks like."""

    shape: torch.Size
    dtype: torch.dtype


def check_samples(x: Tensor, *, like: Item | None) -> Item:
    """Refuse samples that no model can learn from, or other ones than before.

    Args:
        x: Raw samples, ``(n, ...)``.
        like: What the samples looked like so far; None at the start.

    Returns:
        What they look like.

    Raises:
        InputError: They are not finite, of the wrong type, or unlike those before.
    """
    if not isinstance(x, Tensor) or x.dim() < 2:
        raise InputError(f"x must be a tensor (n, ...) of samples; given {_shown(x)}.")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise InputError(f"x must be uint8 or floating point; given {x.dtype}.")
    item = Item(x.shape[1:], x.dtype)
    if like is not None and item != like:
        raise InputError(
            f"x must hold samples of shape {tuple(like.shape)} and {like.dtype}, as before; "
            f"given {tuple(item.shape)} and {item.dtype}."
        )
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).flatten(1).any(1).sum())
        raise InputError(f"x must be finite; {bad} of {x.shape[0]} samples hold NaN or Inf.")
    return item


def check_length(x: Tensor, y: Tensor) -> None:
    """Refuse an empty batch, or one whose targets are more or fewer than its samples.

    Raises:
        InputError: The lengths do not fit.
    """
    if x.shape[0] == 0:
        raise InputError("The batch is empty; it must have at least one sample.")
    if not isinstance(y, Tensor) or y.dim() == 0 or y.shape[0] != x.shape[0]:
        raise InputError(f"y must have one entry for each of {len(x)} samples; given {_shown(y)}.")


def check_labels(y: Tensor) -> list[int]:
    """Labels as integers on the host.

    Raises:
        InputError: They are not integers of shape ``(n,)``, or one is negative.
    """
    if y.dim() != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(
            f"y must be integer labels of shape (n,); given {y.dtype} of shape {tuple(y.shape)}."
        )
    labels: list[int] = y.tolist()
    if min(labels) < 0:
        raise InputError(f"Labels must be at least 0; given {min(labels)}.")
    return labels


def check_targets(y: Tensor, *, dtype: torch.dtype, outputs: int) -> None:
    """Refuse regression targets that do not fit the model.

    Args:
        y: Shape ``(n, outputs)``.
        dtype: Type of the model's parameters.
        outputs: How many outputs the model has.

    Raises:
        InputError: They are of another type or shape, or not finite.
    """
    if y.dtype != dtype or y.shape[1:] != (outputs,):
        raise InputError(
            f"y must be {dtype} of shape (n, {outputs}); given {y.dtype} of shape {tuple(y.shape)}."
        )
    if not bool(torch.isfinite(y).all()):
        raise InputError("y must be finite; it holds NaN or Inf.")


def _shown(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
