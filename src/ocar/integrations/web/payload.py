"""JSON into the tensors of a learner, and a reason where that cannot be done."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ocar.errors import InputError
from ocar.items import Item, Items
from ocar.structure import Inputs, as_inputs, named_part

MOST_LABEL = 2**31 - 1

_NAMES = {"b": "true or false", "i": "integers", "f": "numbers"}
_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "f": {int, float}}
_DTYPES = {"b": np.bool_, "i": np.int64, "f": np.float64}


def to_samples(value: Any, items: Items) -> Inputs:
    """Samples ``(n, ...)`` from nested lists, one list a sample, nested or flat.

    Args:
        value: Lists of numbers. Samples of several parts are an object of such lists by name, or a
            list of them if the learner was given tuples.
        items: Shape and type of a sample, or of its parts.

    Raises:
        InputError: The numbers are of another shape or type.
    """
    if isinstance(items, Item):
        return _tensor(value, items, "x")
    ordered = "0" in items
    if ordered and isinstance(value, list):
        value = {str(place): part for place, part in enumerate(value)}
    if not isinstance(value, dict) or value.keys() != items.keys():
        kind = f"a list of {len(items)} parts" if ordered else f"an object of {', '.join(items)}"
        raise InputError(f"x must be {kind}; given {_given(value)}.")
    parts = {name: _tensor(value[name], item, named_part(name)) for name, item in items.items()}
    return as_inputs(tuple(parts.values()) if ordered else parts)


def to_labels(value: Any) -> Tensor:
    """Labels, ``(n,)`` int64.

    Raises:
        InputError: They are no integers from 0 to 2³¹ − 1.
    """
    array = _array(value, "y", "i")
    if array.ndim != 1 or not array.size or array.min() < 0 or array.max() > MOST_LABEL:
        raise InputError(f"y must be a list of labels, integers from 0 to {MOST_LABEL}.")
    return torch.from_numpy(array)


def to_targets(value: Any, dtype: torch.dtype) -> Tensor:
    """Regression targets, ``(n, outputs)``; a plain list is one output.

    Raises:
        InputError: They are no numbers.
    """
    array = _array(value, "y", "f")
    return torch.from_numpy(array[:, None] if array.ndim == 1 else array).to(dtype)


def _tensor(value: Any, item: Item, name: str) -> Tensor:
    kind = "f" if item.dtype.is_floating_point else "b" if item.dtype == torch.bool else "i"
    array, shape = _array(value, name, kind), tuple(item.shape)
    if array.ndim == 2 and array.shape[1] == math.prod(shape):
        array = array.reshape(-1, *shape)
    if array.shape[1:] != shape or not array.size:
        raise InputError(
            f"{name} must be a list of samples of shape {shape}; given shape {array.shape}."
        )
    if kind == "i":
        limits = torch.iinfo(item.dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise InputError(
                f"{name} must hold integers from {limits.min} to {limits.max}; given "
                f"{array.min()} to {array.max()}."
            )
    return torch.from_numpy(array).to(item.dtype)


def _array(value: Any, name: str, kind: str) -> np.ndarray[Any, Any]:
    """Nested lists as an array of bool, int64 or float64."""
    types, level = {type(value)}, [value]
    while types == {list}:
        level = list(chain.from_iterable(level))
        types = set(map(type, level))
    # Before numpy sees them: an array of texts takes for each the room of the longest.
    if not types <= {*_TYPES[kind], list}:
        raise InputError(f"{name} must hold {_NAMES[kind]} only.")
    try:
        return np.array(value, _DTYPES[kind])
    except OverflowError as error:
        raise InputError(f"{name} must hold smaller {_NAMES[kind]}.") from error
    except ValueError as error:
        raise InputError(f"{name} must be nested lists of equal lengths.") from error


def _given(value: Any) -> str:
    return f"an object of {', '.join(value)}" if isinstance(value, dict) else type(value).__name__
