"""Shape and type of a stream's samples: all are like the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ocar.errors import CheckpointError, InputError
from ocar.structure import PADDING, TYPES, Inputs, named_part, parts_of


class Item(NamedTuple):
    """Shape and type of one sample of a stream, or of a part of it."""

    shape: torch.Size
    dtype: torch.dtype


Items = Item | dict[str, Item]
"""Of samples that are one tensor, or of the parts of a structure, by name."""


def check_samples(x: Inputs, *, like: Items | None) -> Items:
    """Shape and type of raw samples ``(n, ...)``.

    Raises:
        InputError: They are not finite, of the wrong type, or unlike those before (``like``).
    """
    if isinstance(x, Tensor) and x.dim() < 2:
        raise InputError(f"x must be a tensor (n, ...) of samples; given {tuple(x.shape)}.")
    parts = parts_of(x)
    for name, part in parts.items():
        if part.dtype not in TYPES:
            raise InputError(
                f"{named_part(name)} must be uint8, bool, integer or floating point; given "
                f"{part.dtype}."
            )
    items = items_of(x)
    if like is not None:
        _check_like(_named(items), _named(like))
    for name, part in parts.items():
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            bad = int((~torch.isfinite(part)).reshape(len(part), -1).any(1).sum())
            raise InputError(
                f"{named_part(name)} must be finite; {bad} of {len(part)} samples hold NaN or Inf."
            )
    return items


def items_of(x: Inputs) -> Items:
    """Shape and type of one sample of a batch."""
    items = {name: Item(part.shape[1:], part.dtype) for name, part in parts_of(x).items()}
    return items.get("", items)


def _named(items: Items) -> dict[str, Item]:
    return items if isinstance(items, dict) else {"": items}


def _check_like(items: dict[str, Item], like: dict[str, Item]) -> None:
    """Raise if samples are unlike those before."""
    if items.keys() != like.keys():
        raise InputError(f"x must be {_kind(like)}, as before; given {_kind(items)}.")
    for name, item in items.items():
        if item != (old := like[name]):
            padding = f" {PADDING}" if not item.dtype.is_floating_point and name else ""
            raise InputError(
                f"{named_part(name)} must hold samples of shape {tuple(old.shape)} and "
                f"{old.dtype}, as before; given {tuple(item.shape)} and {item.dtype}.{padding}"
            )


def _kind(items: dict[str, Item]) -> str:
    """What samples are, in a message."""
    if "" in items:
        return "one tensor"
    return f"a tuple of {len(items)}" if "0" in items else f"a dictionary of {', '.join(items)}"


def to_plain(items: Items | None) -> Any:
    """Plain values for a checkpoint."""
    if isinstance(items, dict):
        return {name: to_plain(item) for name, item in items.items()}
    return None if items is None else [list(items.shape), str(items.dtype)]


def from_plain(saved: Any) -> dict[str, Item]:
    """What :func:`to_plain` was given, by the names of the parts."""
    parts = saved if isinstance(saved, Mapping) else {} if saved is None else {"": saved}
    found = {}
    for part, (shape, name) in parts.items():
        dtype = getattr(torch, str(name).removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype):
            raise CheckpointError(f"The checkpoint has samples of unknown type {name!r}.")
        found[part] = Item(torch.Size(shape), dtype)
    return found


def unnamed(items: dict[str, Item]) -> Items | None:
    """The item of one tensor, the items of several parts, or None if there are none."""
    return items.get("", items) or None
